use proptest::{prelude::*, sample::Index};

use super::*;
use crate::api::json::strategies::{self, Json, Style};

const BUILTIN: &[u8] = include_bytes!("../samples/builtin-watch.json");
const CUSTOM: &[u8] = include_bytes!("../samples/custom-watch.json");
const EXPIRED: &[u8] = include_bytes!("../samples/expired-watch.json");

type Events = Vec<(EventType, String)>;

fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, limit: usize) -> Result<Events, FrameError> {
    let (mut decoder, mut events) = (FrameDecoder::new(limit), Vec::new());
    for piece in pieces {
        decoder.feed(piece);
        while let Some(frame) = decoder.next_frame()? {
            events.push((frame.kind, String::from_utf8_lossy(frame.object).into_owned()));
        }
    }
    decoder.finish()?;
    Ok(events)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn frames_come_out_as_they_went_in(
        events in proptest::collection::vec((strategies::json_object(0..5), 0_usize..5, any::<bool>()), 0..6),
        ends in proptest::collection::vec(prop_oneof![Just("\n"), Just("\r\n"), Just("\n\n")], 6),
        cuts in strategies::cuts(),
    ) {
        let types = [
            ("ADDED", EventType::Added), ("MODIFIED", EventType::Modified), ("DELETED", EventType::Deleted),
            ("BOOKMARK", EventType::Bookmark), ("ERROR", EventType::Error),
        ];
        let (mut body, mut want) = (Vec::new(), Vec::new());
        for ((object, which, swapped), end) in events.into_iter().zip(ends) {
            let text = String::from_utf8(object.write(Style::Compact)).unwrap();
            let mut members = [("type", Json::text(types[which].0)), ("object", object)];
            if swapped {
                members.reverse();
            }
            body.extend(Json::object(members).write(Style::Compact));
            body.extend(end.as_bytes());
            want.push((types[which].1, text));
        }
        prop_assert_eq!(decode(strategies::pieces(&body, &cuts), usize::MAX), Ok(want));
    }

    #[test]
    fn a_body_that_ends_inside_a_frame_says_so(at in any::<Index>(), cuts in strategies::cuts()) {
        let cut = &BUILTIN[..at.index(BUILTIN.len())];
        let complete = cut.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        let want = match cut.len() - complete {
            0 => Ok(decode([&cut[..complete]], usize::MAX).unwrap()),
            bytes => Err(FrameError::Truncated { bytes }),
        };
        prop_assert_eq!(decode(strategies::pieces(cut, &cuts), usize::MAX), want);
    }

    #[test]
    fn noise_never_panics_and_never_depends_on_the_cuts(noise in strategies::noise(), cuts in strategies::cuts()) {
        prop_assert_eq!(decode(strategies::pieces(&noise, &cuts), 200).is_ok(), decode([&noise[..]], 200).is_ok());
    }
}

#[test]
fn recorded_watches_are_decoded() {
    let events = decode([BUILTIN], 1 << 20).unwrap();
    assert!(events.len() == 3 && events.iter().all(|(kind, _)| *kind == EventType::Modified));
    assert!(events.iter().all(|(_, object)| object.starts_with(r#"{"kind":"ConfigMap","apiVersion":"v1","#)));
    let events = decode([CUSTOM], 1 << 20).unwrap();
    assert_eq!(events.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [EventType::Added, EventType::Bookmark]);
    let events = decode([EXPIRED], 1 << 20).unwrap();
    assert!(events[0].0 == EventType::Error && events[0].1.contains("\"code\":410"));
}

#[test]
fn the_limit_holds_before_and_after_the_newline() {
    let frame = b"{\"type\":\"ADDED\",\"object\":{}}\n";
    let limit = frame.len() - 1;
    for size in [1, 10, 1000] {
        assert_eq!(decode(frame.chunks(size), limit).map(|events| events.len()), Ok(1));
        assert_eq!(decode(frame.chunks(size), limit - 1), Err(FrameError::TooLarge { limit: limit - 1 }));
    }
    assert_eq!(decode([&[b'x'; 11][..]], 10), Err(FrameError::TooLarge { limit: 10 }));
}

#[test]
fn what_is_no_event_is_an_error_that_says_so() {
    for (line, want) in [
        (r#"{"type":"CHANGED","object":{}}"#, r#"unknown watch event type "CHANGED""#),
        (r#"{"object":{}}"#, "watch frame has no type"),
        (r#"{"type":null,"object":{}}"#, "watch frame has no type"),
        (r#"{"type":"ADDED"}"#, "watch frame has no object"),
        (r#"{"type":"ADDED","object":null}"#, "watch frame is invalid: field object is not an object"),
        (r#"{"type":"ADDED","type":"DELETED","object":{}}"#, "watch frame is invalid: field type appears twice"),
        (r#"{"type":"ADDED","object":{},"object":{}}"#, "watch frame is invalid: field object appears twice"),
        (r#"{"type":"ADDED","object":{}"#, "watch frame is invalid: json text ends early, after 27 bytes"),
        (r#"{"type":"ADDED","object":{}}}"#, "invalid: unexpected '}' at byte 28, expected the end of the text"),
        ("<html>", "watch frame is invalid: unexpected '<' at byte 0, expected an object"),
    ] {
        let error = decode([format!("{line}\n").as_bytes()], 1000).unwrap_err().to_string();
        assert!(error.ends_with(want), "{error} <- {line}");
    }
    assert_eq!(decode([&b"\n \r\n\n"[..]], 1000), Ok(vec![]));
    let more = br#"{"type":"ADDED","more":[1,{"object":"x"}],"object":{"a":1}}"#;
    assert_eq!(decode([&more[..], b"\n"], 1000), Ok(vec![(EventType::Added, "{\"a\":1}".to_owned())]));
}

#[test]
fn a_dribble_is_searched_once() {
    let mut decoder = FrameDecoder::new(1 << 22);
    let body = [&b"{\"type\":\"ADDED\",\"object\":{\"a\":\""[..], &vec![b'x'; 1 << 21], b"\"}}\n"].concat();
    for byte in &body[..body.len() - 1] {
        decoder.feed(std::slice::from_ref(byte));
        assert_eq!(decoder.next_frame(), Ok(None));
        assert_eq!((decoder.searched, decoder.start), (decoder.buffer.len(), 0));
    }
    decoder.feed(b"\n");
    assert!(decoder.next_frame().unwrap().is_some_and(|frame| frame.object.len() == (1 << 21) + 8));
}
