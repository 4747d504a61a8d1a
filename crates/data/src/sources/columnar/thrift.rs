//! A look at what Parquet files say of themselves, before the crate parquet reads it.
//!
//! It is in Thrift's compact protocol. The crate skips fields that it does not know; it goes over the
//! elements of a list there as often as the list says, and takes booleans for nothing. So 160 bytes keep it
//! busy for a minute. Nothing that is read here by name is a list of booleans, so a file is refused that has
//! one.
//!
//! Source: the specification "Thrift compact protocol encoding" of Apache Thrift.

const BOOLEANS: &str = "a list of booleans, where none belongs";
const TOO_MANY: &str = "a list of more elements than bytes are left";

/// How deep values may be nested. The crate parquet goes as deep.
const DEEPEST: u32 = 64;

/// Checks that a struct ends within the bytes, and that lists, sets and maps have no more elements than there
/// are bytes left. What is behind the struct is not looked at.
///
/// # Errors
/// What is wrong.
pub(super) fn check(bytes: &[u8]) -> Result<(), &'static str> {
    Walk { left: bytes }.fields(DEEPEST, |_, _| {})
}

/// Checks the headers of a column's pages, which lie one behind the other. What is no header ends the column:
/// whether a page is missing then, the crate parquet finds.
///
/// # Errors
/// What is wrong with a list.
pub(super) fn check_pages(bytes: &[u8]) -> Result<(), &'static str> {
    let mut walk = Walk { left: bytes };
    while !walk.left.is_empty() {
        let mut page = 0;
        let header = walk.fields(DEEPEST, |field, number| {
            if field == COMPRESSED_PAGE_SIZE {
                page = number;
            }
        });
        match header.and_then(|()| walk.skip(page)) {
            Err(what) if [BOOLEANS, TOO_MANY].contains(&what) => return Err(what),
            Err(_) => break,
            Ok(()) => {}
        }
    }
    Ok(())
}

/// The field of a page's header that has the bytes behind it.
const COMPRESSED_PAGE_SIZE: u64 = 3;

struct Walk<'a> {
    left: &'a [u8],
}

impl Walk<'_> {
    fn byte(&mut self) -> Result<u8, &'static str> {
        let (&byte, left) = self.left.split_first().ok_or("it ends early")?;
        self.left = left;
        Ok(byte)
    }

    /// Reads an unsigned number of seven bits a byte.
    fn number(&mut self) -> Result<u64, &'static str> {
        let mut number = 0;
        for place in 0..10 {
            let byte = self.byte()?;
            number |= u64::from(byte & 127) << (7 * place);
            if byte < 128 {
                return Ok(number);
            }
        }
        Err("a number of more than ten bytes")
    }

    fn skip(&mut self, count: u64) -> Result<(), &'static str> {
        let count = usize::try_from(count).ok().filter(|&count| count <= self.left.len());
        self.left = &self.left[count.ok_or("it ends early")?..];
        Ok(())
    }

    /// Goes over the fields of a struct, and tells the whole numbers that are not negative, each with its
    /// field.
    fn fields(&mut self, depth: u32, mut tell: impl FnMut(u64, u64)) -> Result<(), &'static str> {
        let mut field = 0_u64;
        loop {
            let head = self.byte()?;
            if head & 15 == 0 {
                return Ok(());
            }
            // A field's number is how much it is above the last one's, or follows. Negative ones are odd.
            field = match head >> 4 {
                0 => self.number()? / 2,
                more => field.wrapping_add(more.into()),
            };
            match head & 15 {
                // A boolean field is its own value.
                1 | 2 => {}
                4..=6 => {
                    let number = self.number()?;
                    if number % 2 == 0 {
                        tell(field, number / 2);
                    }
                }
                kind => self.value(kind, depth)?,
            }
        }
    }

    fn value(&mut self, kind: u8, depth: u32) -> Result<(), &'static str> {
        let depth = depth.checked_sub(1).ok_or("values are nested too deep")?;
        match kind {
            3 => self.skip(1),
            4..=6 => self.number().map(drop),
            7 => self.skip(8),
            8 => {
                let length = self.number()?;
                self.skip(length)
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.number()? } else { (head >> 4).into() };
                self.elements(count, &[head & 15], depth)
            }
            11 => match self.number()? {
                0 => Ok(()),
                count => {
                    let kinds = self.byte()?;
                    self.elements(count, &[kinds >> 4, kinds & 15], depth)
                }
            },
            12 => self.fields(depth, |_, _| {}),
            13 => self.skip(16),
            _ => Err("a value of no known type"),
        }
    }

    fn elements(&mut self, count: u64, kinds: &[u8], depth: u32) -> Result<(), &'static str> {
        if count > 0 && kinds.iter().any(|kind| (1..=2).contains(kind)) {
            return Err(BOOLEANS);
        }
        // Each element takes a byte at least.
        if count > self.left.len() as u64 {
            return Err(TOO_MANY);
        }
        for _ in 0..count {
            kinds.iter().try_for_each(|&kind| self.value(kind, depth))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a struct whose field 1 is of a kind, with its bytes.
    fn with(kind: u8, bytes: &[u8]) -> Vec<u8> {
        [&[0x10 | kind], bytes, &[0]].concat()
    }

    #[test]
    fn values_of_every_kind_end_where_they_should() {
        let text = [3, b'a', b'b', b'c'];
        let kinds: [(u8, &[u8]); 11] = [
            (1, &[]),
            (3, &[9]),
            (5, &[0x80, 1]),
            (7, &[0; 8]),
            (8, &text),
            (9, &[0x25, 1, 2]),
            (9, &[0xf8, 1, 3, b'a', b'b', b'c']),
            (9, &[0]),
            (11, &[1, 0x58, 7, 3, b'a', b'b', b'c']),
            (12, &[0x15, 4, 0]),
            (13, &[0; 16]),
        ];
        for (kind, bytes) in kinds {
            let whole = with(kind, bytes);
            assert_eq!(check(&whole), Ok(()), "{kind}");
            assert!(check(&whole[..whole.len() - 1]).is_err(), "{kind}");
        }
        assert!(check(&[0x0c, 2, 0, 0]).is_ok());
    }

    #[test]
    fn pages_are_found_by_the_length_in_their_header() {
        // Fields 1, 2 and 3: a kind, 4 bytes unpacked, 2 bytes packed.
        let page = [0x15, 0, 0x15, 8, 0x15, 4, 0, b'x', b'y'];
        assert_eq!(check_pages(&page.repeat(3)), Ok(()));
        assert_eq!(check_pages(&page.repeat(3)[..20]), Ok(()));
        let listed = [0x15, 0, 0x15, 8, 0x15, 4, 0x19, 0xf1, 0xff, 0xff, 0xff, 7, 0, b'x', b'y'];
        assert!(check_pages(&[&page[..], &listed].concat()).is_err());
    }

    #[test]
    fn lists_that_would_take_for_ever_are_refused() {
        let many = [0xff, 0xff, 0xff, 0xff, 7];
        for kind in 1..=12_u8 {
            let list = with(9, &[&[0xf0 | kind], &many[..]].concat());
            assert!(check(&list).is_err(), "{kind}");
            let map = with(11, &[&many[..], &[0x50 | kind]].concat());
            assert!(check(&map).is_err(), "{kind}");
        }
        assert!(check(&vec![0x1c; 1000]).is_err());
        // Lists in lists, each with what is left.
        assert!(check(&with(9, &[0x19; 1000])).is_err());
    }
}
