//! The skipping core: finds where a JSON container or string ends, without looking at what is inside.
//!
//! Text is read in blocks of 64 bytes. For each block four bit masks are made (quotes, backslashes, opening and closing
//! brackets), and everything else is arithmetic on them: which quotes are escaped, which bytes are inside strings, how
//! deep the nesting is. There is no branch per byte, hence nothing to mispredict; state is a few words, hence a text may
//! come in pieces cut anywhere.
//!
//! **Column order.** The masks do not follow the text: block byte `8 * j + i` is bit `8 * i + j`. The compiler turns
//! [`columns`] into vector compares and plain ORs in that order, where the order of the text would need an instruction
//! that safe code cannot reach. Shifts ([`next`]) and running parity ([`parity`]) work in column order too; only a place
//! in the text needs [`text_order`], once for each end found.
//!
//! It does NOT validate: `[}` closes, and so does a container with nonsense inside. What is cut out with it is balanced,
//! which for bytes of an API server is enough; the few values that matter are read by a checking cursor.

use memchr::memchr2;

/// Bytes in a block: one bit of a mask each.
const BLOCK: usize = 64;

/// The place inside a container that has been opened and not yet closed.
#[derive(Debug)]
pub(super) struct Nesting {
    /// Containers open at this place; 0 once the end has been found.
    depth: usize,
    /// All ones inside a string, else 0.
    string: u64,
    escapes: Escapes,
}

/// Whether the next byte is escaped by the one before it.
#[derive(Debug, Default)]
struct Escapes {
    pending: bool,
}

/// Where the string ends whose text starts at `from`: the place of its closing quote, and whether there are escapes in
/// it. `None` if the text ends first.
pub(super) fn string_end(bytes: &[u8], from: usize) -> Option<(usize, bool)> {
    let rest = bytes.get(from..)?;
    let at = memchr2(b'"', b'\\', rest)?;
    if rest[at] == b'"' {
        return Some((from + at, false));
    }
    // Escapes come in crowds (JSON kept in annotations), so a search for each would cost more than blocks do.
    let mut escapes = Escapes::default();
    let end = blocks(&rest[at..], |block, len| {
        let quotes = columns(block, |b| b == b'"');
        let open = quotes & !escapes.step(columns(block, |b| b == b'\\'), len);
        (open != 0).then(|| text_order(open).trailing_zeros() as usize)
    })?;
    Some((from + at + end, true))
}

// === impl Nesting ===

impl Nesting {
    /// The place right after an opening bracket.
    pub(super) fn opened() -> Self {
        Self { depth: 1, string: 0, escapes: Escapes::default() }
    }

    /// Reads on until the container closes: the place after its closing bracket, or `None` if all of `bytes` belongs to
    /// it. Then the next piece of the text goes on from here.
    pub(super) fn close(&mut self, bytes: &[u8]) -> Option<usize> {
        blocks(bytes, |block, len| self.step(block, len)).map(|at| at + 1)
    }

    /// One block: the place of the closing bracket, if it is here.
    #[inline(always)]
    fn step(&mut self, block: &[u8; BLOCK], len: usize) -> Option<usize> {
        let escaped = self.escapes.step(columns(block, |b| b == b'\\'), len);
        let quotes = columns(block, |b| b == b'"') & !escaped;
        let string = parity(quotes) ^ self.string;
        self.string = if string >> 63 == 1 { u64::MAX } else { 0 };

        // 0x20 is the only bit in which `[` differs from `{`, and `]` from `}`.
        let mut open = columns(block, |b| b | 0x20 == b'{') & !string;
        let mut close = columns(block, |b| b | 0x20 == b'}') & !string;
        // `{}` changes nothing, and managedFields are full of it. (Pairs across columns stay; that is only slower.)
        let empty = open & (close >> 8);
        open ^= empty;
        close ^= empty << 8;

        let (opens, closes) = (open.count_ones() as usize, close.count_ones() as usize);
        if closes >= self.depth {
            let (open, mut close) = (text_order(open), text_order(close));
            let mut closed = 0;
            while close != 0 {
                let before = (close & close.wrapping_neg()) - 1;
                closed += 1;
                if self.depth + (open & before).count_ones() as usize == closed {
                    self.depth = 0;
                    return Some(close.trailing_zeros() as usize);
                }
                close &= close - 1;
            }
        }
        self.depth = self.depth + opens - closes;
        None
    }
}

// === impl Escapes ===

impl Escapes {
    /// The escaped bytes of a block, from its backslashes. Only `len` bytes of the block are text, the rest is padding.
    #[inline(always)]
    fn step(&mut self, backslashes: u64, len: usize) -> u64 {
        if backslashes == 0 && !self.pending {
            return 0;
        }
        let after = next(backslashes);
        let escaped = if !self.pending && backslashes & after == 0 {
            self.pending = backslashes >> 63 == 1;
            after
        } else {
            self.runs(backslashes)
        };
        if len < BLOCK {
            self.pending = escaped & (1 << (8 * (len % 8) + len / 8)) != 0;
        }
        escaped
    }

    /// The same where backslashes follow each other: an escaped one escapes nothing.
    fn runs(&mut self, backslashes: u64) -> u64 {
        let mut escaped = u64::from(self.pending);
        let mut left = text_order(backslashes) & !escaped;
        self.pending = false;
        while left != 0 {
            let at = left.trailing_zeros();
            if at == 63 {
                self.pending = true;
                break;
            }
            escaped |= 2 << at;
            left &= !(3 << at);
        }
        text_order(escaped)
    }
}

/// Offers `bytes` block by block, the last one padded with spaces, until `step` names a place in its block.
#[inline(always)]
fn blocks(bytes: &[u8], mut step: impl FnMut(&[u8; BLOCK], usize) -> Option<usize>) -> Option<usize> {
    let (full, tail) = bytes.as_chunks::<BLOCK>();
    for (n, block) in full.iter().enumerate() {
        if let Some(at) = step(block, BLOCK) {
            return Some(n * BLOCK + at);
        }
    }
    if tail.is_empty() {
        return None;
    }
    let mut last = [b' '; BLOCK];
    last[..tail.len()].copy_from_slice(tail);
    step(&last, tail.len()).map(|at| full.len() * BLOCK + at)
}

/// The bytes of a block that satisfy `is`, in column order.
#[inline(always)]
fn columns(block: &[u8; BLOCK], is: impl Fn(u8) -> bool) -> u64 {
    /// Each byte's bit within its column.
    const WEIGHT: [u8; BLOCK] = {
        let mut weight = [0; BLOCK];
        let mut at = 0;
        while at < BLOCK {
            weight[at] = 1 << (at / 8);
            at += 1;
        }
        weight
    };
    let mut weighed = [0; BLOCK];
    for at in 0..BLOCK {
        weighed[at] = if is(block[at]) { WEIGHT[at] } else { 0 };
    }
    let (rows, _) = weighed.as_chunks::<16>();
    let both = rows.iter().fold(0, |all, row| all | u128::from_le_bytes(*row));
    (both as u64) | ((both >> 64) as u64)
}

/// Each bit moved to the byte after it in the text; the last one falls out.
#[inline(always)]
fn next(columns: u64) -> u64 {
    (columns << 8) | (((columns >> 56) << 1) & 0xff)
}

/// For each byte: whether the number of bits set up to and with it is odd.
#[inline(always)]
fn parity(mut columns: u64) -> u64 {
    columns ^= columns << 8;
    columns ^= columns << 16;
    columns ^= columns << 32;
    // The last column now has the parity of each row; a row starts with that of all rows before it.
    let mut rows = columns >> 56;
    rows ^= rows << 1;
    rows ^= rows << 2;
    rows ^= rows << 4;
    columns ^ ((rows << 1) & 0xff).wrapping_mul(0x0101_0101_0101_0101)
}

/// Column order to text order and back: the transposition of an 8x8 bit matrix.
#[inline(always)]
fn text_order(mut columns: u64) -> u64 {
    for (shift, mask) in [(7, 0x00aa_00aa_00aa_00aa), (14, 0x0000_cccc_0000_cccc), (28, 0x0000_0000_f0f0_f0f0)] {
        let swap = (columns ^ (columns >> shift)) & mask;
        columns ^= swap ^ (swap << shift);
    }
    columns
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the blocks must agree with: one byte at a time.
    fn close_by_byte(bytes: &[u8]) -> Option<usize> {
        let (mut depth, mut string) = (1, false);
        for (at, b) in bytes.iter().enumerate() {
            match b {
                b'"' if !is_escaped(bytes, at) => string = !string,
                b'{' | b'[' if !string => depth += 1,
                b'}' | b']' if !string => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Some(at + 1);
            }
        }
        None
    }

    fn is_escaped(bytes: &[u8], at: usize) -> bool {
        bytes[..at].iter().rev().take_while(|&&b| b == b'\\').count() % 2 == 1
    }

    fn close_in_pieces(bytes: &[u8], cuts: &[usize]) -> Option<usize> {
        let (mut nesting, mut at) = (Nesting::opened(), 0);
        for cut in cuts.iter().copied().chain([usize::MAX]) {
            let end = at + cut.min(bytes.len() - at);
            if let Some(found) = nesting.close(&bytes[at..end]) {
                return Some(at + found);
            }
            at = end;
        }
        None
    }

    /// Text made of the bytes that matter, so that every few cases have runs of backslashes across a block's edge.
    fn dense() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            4 => Just(b'x'), 2 => Just(b'\\'), 2 => Just(b'"'), 2 => Just(b'{'), 1 => Just(b'['), 1 => Just(b'}'),
            1 => Just(b']'), 1 => any::<u8>(),
        ];
        proptest::collection::vec(byte, 0..300)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn blocks_agree_with_bytes(bytes in dense(), cuts in proptest::collection::vec(0_usize..80, 0..12)) {
            let want = close_by_byte(&bytes);
            prop_assert_eq!(Nesting::opened().close(&bytes), want);
            prop_assert_eq!(close_in_pieces(&bytes, &cuts), want);
        }

        #[test]
        fn a_string_ends_at_its_first_quote_that_is_not_escaped(bytes in dense(), from in 0_usize..310) {
            let text = bytes.get(from..).unwrap_or_default();
            let want = (0..text.len()).find(|&at| text[at] == b'"' && !is_escaped(text, at));
            let want = want.map(|at| (from + at, text[..at].contains(&b'\\')));
            prop_assert_eq!(string_end(&bytes, from), want);
        }

        #[test]
        fn column_order_is_an_order(mask in any::<u64>(), byte in any::<u8>()) {
            prop_assert_eq!(text_order(text_order(mask)), mask);
            let text = text_order(mask);
            prop_assert_eq!(text_order(next(mask)), text << 1);
            let mut odd = 0;
            for at in 0..64 {
                odd |= u64::from((text << (63 - at)).count_ones() % 2) << at;
            }
            prop_assert_eq!(text_order(parity(mask)), odd);
            let block = std::array::from_fn(|at| if text >> at & 1 == 1 { byte } else { !byte });
            prop_assert_eq!(columns(&block, |b| b == byte), mask);
        }
    }

    #[test]
    fn one_byte_at_a_time_finds_the_same_end() {
        let text = br#""a":"\\\"}]","b":[{},{"c":[1,"]"]}],"d":"\\"} "#;
        let ones = vec![1; text.len()];
        assert_eq!(close_in_pieces(text, &ones), Some(text.len() - 1));
    }
}
