use proptest::prelude::*;

use super::*;

const MAX: usize = 1_000;

/// What has passed in the end, when the bytes come in pieces of these lengths (the last takes the rest), and what stopped
/// it.
fn pass(bytes: &[u8], pieces: &[usize]) -> (Vec<u8>, Option<Halt>) {
    let mut framing = Framing::new(MAX);
    let (mut passed, mut held, mut rest) = (Vec::new(), Vec::new(), bytes);
    for piece in pieces.iter().copied().chain([usize::MAX]) {
        let (new, later) = rest.split_at(piece.min(rest.len()));
        rest = later;
        held.extend_from_slice(new);
        loop {
            let verdict = framing.judge(&held);
            passed.extend(held.drain(..verdict.pass));
            match verdict.halt {
                Some(Halt::Escape(length)) => {
                    passed.extend(escape(&held[..length]));
                    held.drain(..length);
                }
                Some(halt) => return (passed, Some(halt)),
                None => break,
            }
        }
    }
    (passed, None)
}

const NEXT: &str = "GET /next HTTP/1.1\r\nhost: x\r\n\r\n";

#[test]
fn what_is_clear_passes_and_so_does_what_follows() {
    for request in [
        "GET / HTTP/1.1\r\n\r\n",
        "\r\nGET / HTTP/1.0\r\nhost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nhost:x\r\nempty:\r\ntab: a\tb\r\nhigh: \u{e9}\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length:  4 \r\n\r\n\n\nGE",
        "POST / HTTP/1.1\r\nTRANSFER-ENCODING: Chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\ntransfer-encoding:chunked\r\n\r\nA;x=\"y\"\r\n\r\n23456\r\n9\r\n000b\r\n{\"a\": \"bc\"}\r\n00\r\nt: 1\r\nu: 2\r\n\r\n",
        "GET /%zz?a=b&&{} HTTP/1.1\r\n\r\n",
        "PATCH * HTTP/1.1\r\n\r\n",
    ] {
        let both = format!("{request}{NEXT}");
        assert_eq!(pass(both.as_bytes(), &[]), (both.clone().into_bytes(), None), "{request}");
        let unfinished = &both.as_bytes()[..both.len() - 1];
        assert_eq!(pass(unfinished, &[]), (request.as_bytes().to_vec(), None), "nothing of an unfinished head passes");
    }
}

#[test]
fn what_could_be_read_in_two_ways_is_refused_and_nothing_of_it_passes() {
    for (request, fault) in [
        ("GET /", Fault::RequestLine),
        ("GET / HTTP/0.9", Fault::RequestLine),
        ("GET / HTTP/2.0", Fault::RequestLine),
        ("GET  / HTTP/1.1", Fault::RequestLine),
        ("GET / a HTTP/1.1", Fault::RequestLine),
        ("GET /\t HTTP/1.1", Fault::RequestLine),
        ("G\u{e9}T / HTTP/1.1", Fault::RequestLine),
        (" GET / HTTP/1.1", Fault::RequestLine),
        ("GET / HTTP/1.1 ", Fault::RequestLine),
        ("GET / HTTP/1.1\nhost: x", Fault::BareLineFeed),
        ("GET / HTTP/1.1\r\nhost: x\na: b", Fault::BareLineFeed),
        ("GET / HTTP/1.1\r\nhost: x\r\n\n", Fault::BareLineFeed),
        ("GET / HTTP/1.1\r\nhost : x", Fault::HeaderLine),
        ("GET / HTTP/1.1\r\n: x", Fault::HeaderLine),
        ("GET / HTTP/1.1\r\nhost", Fault::HeaderLine),
        ("GET / HTTP/1.1\r\na: b\r\n c", Fault::HeaderLine),
        ("GET / HTTP/1.1\r\n c: d", Fault::HeaderLine),
        ("GET / HTTP/1.1\r\na: b\0", Fault::HeaderLine),
        ("GET / HTTP/1.1\r\na: b\rc", Fault::HeaderLine),
        ("GET / HTTP/1.1\r\na: b\x7f", Fault::HeaderLine),
        ("PUT / HTTP/1.1\r\ncontent-length: 2\r\ncontent-length: 3", Fault::Length),
        ("PUT / HTTP/1.1\r\ncontent-length: 2\r\nContent-Length: 2", Fault::Length),
        ("PUT / HTTP/1.1\r\ncontent-length: 2, 2", Fault::Length),
        ("PUT / HTTP/1.1\r\ncontent-length: +2", Fault::Length),
        ("PUT / HTTP/1.1\r\ncontent-length: -2", Fault::Length),
        ("PUT / HTTP/1.1\r\ncontent-length: 0x2", Fault::Length),
        ("PUT / HTTP/1.1\r\ncontent-length:", Fault::Length),
        ("PUT / HTTP/1.1\r\ncontent-length: 99999999999999999999999", Fault::Length),
        ("PUT / HTTP/1.1\r\ncontent-length: 2\r\ntransfer-encoding: chunked", Fault::Both),
        ("PUT / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 2", Fault::Both),
        ("PUT / HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked", Fault::Coding),
        ("PUT / HTTP/1.1\r\ntransfer-encoding: \tchunked", Fault::Coding),
        ("PUT / HTTP/1.1\r\ntransfer-encoding: chunked\t", Fault::Coding),
        ("PUT / HTTP/1.1\r\ntransfer-encoding: gzip, chunked", Fault::Coding),
        ("PUT / HTTP/1.1\r\ntransfer-encoding: chunked, gzip", Fault::Coding),
        ("PUT / HTTP/1.1\r\ntransfer-encoding: xchunked", Fault::Coding),
        ("PUT / HTTP/1.1\r\ntransfer-encoding:", Fault::Coding),
        ("PUT / HTTP/1.0\r\ntransfer-encoding: chunked", Fault::Coding),
    ] {
        let bytes = format!("{NEXT}{request}\r\n\r\n{NEXT}");
        let want = (NEXT.as_bytes().to_vec(), Some(Halt::Refused(fault)));
        assert_eq!(pass(bytes.as_bytes(), &[]), want, "{request}");
        assert_eq!(fault.code(), 400);
    }
}

#[test]
fn heads_have_bounds() {
    let refused = |bytes: &str| match pass(bytes.as_bytes(), &[]) {
        (passed, Some(Halt::Refused(fault))) if passed.is_empty() => Some(fault.code().as_u16()),
        (_, None) => None,
        other => panic!("{other:?}"),
    };
    let lines = |n| format!("GET / HTTP/1.1\r\n{}\r\n", "a:\r\n".repeat(n));
    let (fits, above) = (lines(245), lines(246));
    assert_eq!((fits.len(), above.len()), (998, 1002));
    assert_eq!(refused(&fits), None);
    assert_eq!(refused(&above), Some(431), "bytes");
    assert_eq!(refused(&"x".repeat(MAX)), None, "may still become one");
    assert_eq!(refused(&"x".repeat(MAX + 1)), Some(431), "without any line's end");
    let mut large = Framing::new(1 << 20);
    let mut judge = |bytes: &str| {
        let halt = large.judge(bytes.as_bytes()).halt;
        large = Framing::new(1 << 20);
        halt
    };
    assert_eq!(judge(&lines(MAX_LINES)), None);
    assert_eq!(judge(&lines(MAX_LINES + 1)), Some(Halt::Refused(Fault::LargeHead)));
    let long = |n: usize| format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(n - 1));
    assert_eq!(judge(&long(MAX_TARGET)), None);
    assert_eq!(judge(&long(MAX_TARGET + 1)), Some(Halt::Refused(Fault::LongTarget)));
    assert_eq!(judge(&long(2 << 20)), Some(Halt::Refused(Fault::LongTarget)));
    assert_eq!(judge(&long(2 << 20)[..(2 << 20) - 9]), Some(Halt::Refused(Fault::LongTarget)));
}

#[test]
fn targets_that_go_holds_are_made_to_fit() {
    for (target, fitting) in [
        ("/a?b={\"c\":<d>}", "/a?b=%7B%22c%22:%3Cd%3E%7D"),
        ("/a\"b", "/a\"b"),
        ("/a<b?c", "/a%3Cb?c"),
        ("/a#b", "/a%23b"),
        ("/a?b#c", "/a?b%23c"),
        ("/\u{e9}", "/\u{e9}"),
        ("/a?b=c%22", "/a?b=c%22"),
    ] {
        let head = |target: &str| format!("GET {target} HTTP/1.1\r\nx: <\"#>\r\n\r\n");
        let (passed, halt) = pass(format!("{}{NEXT}", head(target)).as_bytes(), &[]);
        assert_eq!((&*String::from_utf8_lossy(&passed), halt), (&*format!("{}{NEXT}", head(fitting)), None));
        assert!(PathAndQuery::try_from(fitting).is_ok(), "{fitting}");
    }
    let (passed, _) = pass(b"GET /a?\xff HTTP/1.1\r\n\r\n", &[]);
    assert_eq!(passed, b"GET /a?%FF HTTP/1.1\r\n\r\n");
}

#[test]
fn a_chunked_body_that_is_none_breaks_off() {
    let head = "PUT / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
    for (body, passed) in [
        ("\r\n", ""),
        ("x\r\n", ""),
        (";\r\n", ""),
        ("2\n{}", ""),
        ("2\rx", ""),
        ("2;a\n", ""),
        ("1000000000000000\r\n", ""),
        ("2\r\n{}}", ""),
        ("2\r\n{}\n", ""),
        ("0\r\na\n\r\n", ""),
        ("0\r\n\rx", ""),
    ] {
        let (got, halt) = pass(format!("{head}{body}").as_bytes(), &[]);
        assert_eq!(halt, Some(Halt::BrokenBody), "{body:?}");
        assert_eq!(String::from_utf8_lossy(&got), format!("{head}{passed}"), "{body:?}");
    }
}

#[test]
fn after_an_upgrade_bytes_are_bytes() {
    for head in [
        "GET / HTTP/1.1\r\nUpgrade: x\r\nConnection: a, UPGRADE\r\n\r\n",
        "POST / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: x\r\ncontent-length: 3\r\n\r\nabc",
    ] {
        let mut framing = Framing::new(MAX);
        let all = format!("{head}\n\nanything\0");
        assert_eq!(framing.judge(all.as_bytes()), Verdict { pass: all.len(), halt: None });
        assert!(framing.is_open());
        let half = pass(format!("{}\n\n", head.replace("onnection", "xnnection")).as_bytes(), &[]);
        assert_eq!(half.1, Some(Halt::Refused(Fault::BareLineFeed)), "not asked for");
    }
}

proptest! {
    /// In whatever pieces bytes come, the same passes and the same is refused.
    #[test]
    fn pieces_do_not_matter(
        parts in proptest::collection::vec(
            prop_oneof![
                Just("GET / HTTP/1.1\r\n\r\n"),
                Just("GET /<\">?\" HTTP/1.1\r\na: b\r\n\r\n"),
                Just("PUT / HTTP/1.1\r\ncontent-length: 5\r\n\r\n"),
                Just("PUT / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"),
                Just("3;x\r\nabc\r\n"),
                Just("0\r\nt: u\r\n\r\n"),
                Just("12345"),
                Just("upgrade: x\r\nconnection: upgrade\r\n"),
                Just("GET / HTTP/1.1\r\n"),
                Just("\r\n"),
                Just("\n"),
            ],
            0..8,
        ),
        pieces in proptest::collection::vec(0_usize..40, 0..10),
    ) {
        let bytes = parts.concat();
        let whole = pass(bytes.as_bytes(), &[]);
        let (passed, halt) = pass(bytes.as_bytes(), &pieces);
        prop_assert_eq!(halt, whole.1);
        // A broken body may have passed up to where it broke.
        if halt == Some(Halt::BrokenBody) {
            prop_assert!(passed.starts_with(&whole.0));
        } else {
            prop_assert_eq!(passed, whole.0);
        }
    }
}
