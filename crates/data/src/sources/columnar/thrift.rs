//! A look at what a Parquet file says of itself, before the crate parquet believes it.
//!
//! The crate asks for memory for as many columns as a schema says, and for a page's values. What it does not
//! know it skips; there it goes over the elements of a list as often as the list says, and booleans take no
//! bytes. So 160 bytes end the process, or keep it busy for a minute. Here every field that the crate reads
//! must be of its kind, so that both read the same; lists must have room for their elements, and columns and
//! pages for theirs.
//!
//! Sources: "Thrift compact protocol encoding" of Apache Thrift, and `parquet.thrift` of Apache Parquet.

/// The kind of a field that the crate reads.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Bool,
    Byte,
    /// i16, i32, i64 or an enum, all of which are one varint.
    Int,
    /// The number of columns under one of a schema.
    Children,
    Double,
    /// Bytes or a text.
    Binary,
    List(&'static Kind),
    Struct(Fields),
}

use Kind::{Binary, Bool, Byte, Children, Double, Int, List, Struct};

/// The fields of a struct by their numbers. The crate skips all others.
type Fields = &'static [(u64, Kind)];

const EMPTY: Kind = Struct(&[]);
const TIME: Kind = Struct(&[(1, Bool), (2, Struct(&[(1, EMPTY), (2, EMPTY), (3, EMPTY)]))]);
const LOGICAL_TYPE: Kind = Struct(&[
    (1, EMPTY),
    (2, EMPTY),
    (3, EMPTY),
    (4, EMPTY),
    (5, Struct(&[(1, Int), (2, Int)])),
    (6, EMPTY),
    (7, TIME),
    (8, TIME),
    (10, Struct(&[(1, Byte), (2, Bool)])),
    (11, EMPTY),
    (12, EMPTY),
    (13, EMPTY),
    (14, EMPTY),
    (15, EMPTY),
    (16, Struct(&[(1, Byte)])),
    (17, Struct(&[(1, Binary)])),
    (18, Struct(&[(1, Binary), (2, Int)])),
    (19, EMPTY),
]);
const SCHEMA_ELEMENT: Kind = Struct(&[
    (1, Int),
    (2, Int),
    (3, Int),
    (4, Binary),
    (5, Children),
    (6, Int),
    (7, Int),
    (8, Int),
    (9, Int),
    (10, LOGICAL_TYPE),
]);
const STATISTICS: Kind = Struct(&[
    (1, Binary),
    (2, Binary),
    (3, Int),
    (4, Int),
    (5, Binary),
    (6, Binary),
    (7, Bool),
    (8, Bool),
    (9, Int),
]);
const KEY_VALUE: Kind = Struct(&[(1, Binary), (2, Binary)]);
const BOX: Kind = Struct(&[
    (1, Double),
    (2, Double),
    (3, Double),
    (4, Double),
    (5, Double),
    (6, Double),
    (7, Double),
    (8, Double),
]);
const COLUMN_META_DATA: Kind = Struct(&[
    (1, Int),
    (2, List(&Int)),
    (3, List(&Binary)),
    (4, Int),
    (5, Int),
    (6, Int),
    (7, Int),
    (8, List(&KEY_VALUE)),
    (9, Int),
    (10, Int),
    (11, Int),
    (12, STATISTICS),
    (13, List(&Struct(&[(1, Int), (2, Int), (3, Int)]))),
    (14, Int),
    (15, Int),
    (16, Struct(&[(1, Int), (2, List(&Int)), (3, List(&Int))])),
    (17, Struct(&[(1, BOX), (2, List(&Int))])),
]);
const COLUMN_CHUNK: Kind = Struct(&[
    (1, Binary),
    (2, Int),
    (3, COLUMN_META_DATA),
    (4, Int),
    (5, Int),
    (6, Int),
    (7, Int),
    (8, Struct(&[(1, EMPTY), (2, Struct(&[(1, List(&Binary)), (2, Binary)]))])),
    (9, Binary),
]);
const ROW_GROUP: Kind = Struct(&[
    (1, List(&COLUMN_CHUNK)),
    (2, Int),
    (3, Int),
    (4, List(&Struct(&[(1, Int), (2, Bool), (3, Bool)]))),
    (5, Int),
    (6, Int),
    (7, Int),
]);
const ENCRYPTION: Kind = Struct(&[(1, Binary), (2, Binary), (3, Bool)]);

/// What the end of a file says of its rows and columns.
const FILE_META_DATA: Fields = &[
    (1, Int),
    (2, List(&SCHEMA_ELEMENT)),
    (3, Int),
    (4, List(&ROW_GROUP)),
    (5, List(&KEY_VALUE)),
    (6, Binary),
    (7, List(&Struct(&[(1, EMPTY), (2, EMPTY)]))),
    (8, Struct(&[(1, ENCRYPTION), (2, ENCRYPTION)])),
    (9, Binary),
];

/// The places of a column's pages.
const OFFSET_INDEX: Fields = &[(1, List(&Struct(&[(1, Int), (2, Int), (3, Int)]))), (2, List(&Int))];

/// What is in front of a page. Fields 2 and 3 are the bytes of its values, and the bytes of the page.
const PAGE_HEADER: Fields = &[
    (1, Int),
    (2, Int),
    (3, Int),
    (4, Int),
    (5, Struct(&[(1, Int), (2, Int), (3, Int), (4, Int), (5, STATISTICS)])),
    (6, EMPTY),
    (7, Struct(&[(1, Int), (2, Int), (3, Bool)])),
    (8, Struct(&[(1, Int), (2, Int), (3, Int), (4, Int), (5, Int), (6, Int), (7, Bool), (8, STATISTICS)])),
];

/// Numbers of fields are i16.
const MOST_FIELDS: u64 = (1 << 15) - 1;

/// How deep values may be nested where the crate skips them.
const DEEPEST: u32 = 64;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Wrong {
    #[error("it ends early")]
    Ends,
    #[error("{0}")]
    Is(&'static str),
}

/// Checks what the end of a file says.
///
/// # Errors
/// What is wrong.
pub(super) fn check_end(bytes: &[u8]) -> Result<(), Wrong> {
    Walk::over(bytes).fields(FILE_META_DATA, DEEPEST).map(drop)
}

/// Checks the places of pages.
///
/// # Errors
/// What is wrong.
pub(super) fn check_index(bytes: &[u8]) -> Result<(), Wrong> {
    Walk::over(bytes).fields(OFFSET_INDEX, DEEPEST).map(drop)
}

/// A page, as its header has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// The bytes of the header.
    pub header: u64,
    /// The bytes behind the header.
    pub packed: u64,
    /// The bytes of what they hold.
    pub unpacked: u64,
}

/// Reads the header of a page, with which the bytes begin.
///
/// # Errors
/// What is wrong.
pub(super) fn page(bytes: &[u8]) -> Result<Page, Wrong> {
    let mut walk = Walk::over(bytes);
    let [_, _, unpacked, packed] = walk.fields(PAGE_HEADER, DEEPEST)?;
    let header = (bytes.len() - walk.left.len()) as u64;
    Ok(Page { header, packed, unpacked })
}

struct Walk<'a> {
    left: &'a [u8],
    /// How many columns may still be said to be under others.
    children: u64,
}

impl<'a> Walk<'a> {
    /// A column takes a byte at least.
    fn over(bytes: &'a [u8]) -> Self {
        Self { left: bytes, children: bytes.len() as u64 }
    }

    fn byte(&mut self) -> Result<u8, Wrong> {
        let (&byte, left) = self.left.split_first().ok_or(Wrong::Ends)?;
        self.left = left;
        Ok(byte)
    }

    /// Reads an unsigned number of seven bits a byte.
    fn number(&mut self) -> Result<u64, Wrong> {
        let mut number = 0;
        for place in 0..10 {
            let byte = self.byte()?;
            number |= u64::from(byte & 127) << (7 * place);
            if byte < 128 {
                return Ok(number);
            }
        }
        Err(Wrong::Is("a number of more than ten bytes"))
    }

    fn skip(&mut self, count: u64) -> Result<(), Wrong> {
        let count = usize::try_from(count).ok().filter(|&count| count <= self.left.len());
        self.left = &self.left[count.ok_or(Wrong::Ends)?..];
        Ok(())
    }

    /// Goes over the fields of a struct. Returns the whole numbers in those below 4.
    fn fields(&mut self, known: Fields, depth: u32) -> Result<[u64; 4], Wrong> {
        let (mut numbers, mut field) = ([0; 4], 0_u64);
        loop {
            let head = self.byte()?;
            if head & 15 == 0 {
                return Ok(numbers);
            }
            // A field's number is how much it is above the last one's, or follows, with a sign in its last
            // bit.
            field = match head >> 4 {
                0 => signed(self.number()?),
                more => field + u64::from(more),
            };
            if field > MOST_FIELDS {
                return Err(Wrong::Is("a field of no number that there is"));
            }
            let kind = known.iter().find(|(number, _)| *number == field).map(|(_, kind)| *kind);
            let before = self.left;
            self.value(head & 15, kind, depth)?;
            if let (Some(Int), Some(place)) = (kind, usize::try_from(field).ok().filter(|&field| field < 4)) {
                numbers[place] = signed(Walk::over(before).number()?);
            }
        }
    }

    /// Goes over the value of a field, for which a boolean takes no bytes.
    fn value(&mut self, wire: u8, kind: Option<Kind>, depth: u32) -> Result<(), Wrong> {
        let depth = depth.checked_sub(1).ok_or(Wrong::Is("values are nested too deep"))?;
        if !kind.is_none_or(|kind| kind.is(wire)) {
            return Err(Wrong::Is("a field is of another kind than Parquet's"));
        }
        match wire {
            1 | 2 => Ok(()),
            3 => self.skip(1),
            4..=6 => {
                let number = signed(self.number()?);
                if matches!(kind, Some(Children)) {
                    let left = self.children.checked_sub(number);
                    self.children = left.ok_or(Wrong::Is("more columns than a schema has room for"))?;
                }
                Ok(())
            }
            7 => self.skip(8),
            8 => {
                let length = self.number()?;
                self.skip(length)
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.number()? } else { (head >> 4).into() };
                let of = if let Some(List(kind)) = kind { Some(*kind) } else { None };
                self.elements(count, &[head & 15], of, depth)
            }
            11 => match self.number()? {
                0 => Ok(()),
                count => {
                    let kinds = self.byte()?;
                    self.elements(count, &[kinds >> 4, kinds & 15], None, depth)
                }
            },
            12 => {
                let known = if let Some(Struct(fields)) = kind { fields } else { &[] };
                self.fields(known, depth).map(drop)
            }
            13 => self.skip(16),
            _ => Err(Wrong::Is("a value of no known type")),
        }
    }

    /// Goes over the elements of a list, or the keys and values of a map.
    fn elements(&mut self, count: u64, wires: &[u8], of: Option<Kind>, depth: u32) -> Result<(), Wrong> {
        if count > 0 && wires.iter().any(|wire| (1..=2).contains(wire)) {
            return Err(Wrong::Is("a list of booleans, where none belongs"));
        }
        // Each element takes a byte at least.
        if count > self.left.len() as u64 {
            return Err(Wrong::Is("a list of more elements than there is room for"));
        }
        (0..count).try_for_each(|_| wires.iter().try_for_each(|&wire| self.value(wire, of, depth)))
    }
}

impl Kind {
    /// Whether a value on the wire is of this kind.
    fn is(self, wire: u8) -> bool {
        match self {
            Bool => (1..=2).contains(&wire),
            Byte => wire == 3,
            Int | Children => (4..=6).contains(&wire),
            Double => wire == 7,
            Binary => wire == 8,
            List(_) => wire == 9,
            Struct(_) => wire == 12,
        }
    }
}

/// Returns a number with its sign in the last bit, or one that nothing has room for if it is negative.
fn signed(number: u64) -> u64 {
    if number.is_multiple_of(2) { number / 2 } else { u64::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a struct whose field, of a number up to 15, has a kind on the wire and these bytes.
    fn with(field: u8, wire: u8, bytes: &[u8]) -> Vec<u8> {
        [&[field << 4 | wire], bytes, &[0]].concat()
    }

    #[test]
    fn values_of_every_kind_end_where_they_should() {
        let kinds: [(u8, &[u8]); 12] = [
            (1, &[]),
            (3, &[9]),
            (5, &[0x80, 1]),
            (7, &[0; 8]),
            (8, &[3, b'a', b'b', b'c']),
            (9, &[0x25, 1, 2]),
            (9, &[0xf8, 1, 3, b'a', b'b', b'c']),
            (9, &[0]),
            (11, &[0]),
            (11, &[1, 0x58, 7, 3, b'a', b'b', b'c']),
            (12, &[0x15, 4, 0]),
            (13, &[0; 16]),
        ];
        for (wire, bytes) in kinds {
            // Field 15 is none that Parquet has.
            let whole = with(15, wire, bytes);
            assert_eq!(check_end(&whole), Ok(()), "{wire}");
            assert_eq!(check_end(&whole[..whole.len() - 1]), Err(Wrong::Ends), "{wire}");
        }
    }

    #[test]
    fn fields_are_of_their_kind() {
        assert_eq!(check_end(&with(1, 5, &[2])), Ok(()));
        assert!(check_end(&with(1, 8, &[0])).is_err());
        assert!(check_end(&with(2, 9, &[0x15, 1])).is_err());
        assert_eq!(check_end(&with(2, 9, &[0x1c, 0x48, 1, b'x', 0])), Ok(()));
        assert!(check_end(&with(2, 9, &[0x1c, 0x45, 1, 0])).is_err());
        // A field's number may follow, too.
        assert_eq!(check_end(&[5, 2, 2, 0]), Ok(()));
        assert!(check_end(&[8, 2, 0, 0]).is_err());
    }

    #[test]
    fn lists_and_schemas_have_room_for_what_they_say() {
        let many = [0xff, 0xff, 0xff, 0xff, 7];
        for wire in 1..=12_u8 {
            let list = [&[0xf0 | wire], &many[..]].concat();
            assert!(matches!(check_end(&with(15, 9, &list)), Err(Wrong::Is(_))), "{wire}");
            let map = [&many[..], &[0x50 | wire]].concat();
            assert!(matches!(check_end(&with(15, 11, &map)), Err(Wrong::Is(_))), "{wire}");
        }
        assert!(check_end(&[0xfc; 1000]).is_err());
        assert!(check_end(&with(15, 9, &[0x19; 1000])).is_err());
        let children = |number: &[u8]| with(2, 9, &[&[0x1c, 0x55], number, &[0]].concat());
        assert_eq!(check_end(&children(&[8])), Ok(()));
        assert!(check_end(&children(&many)).is_err());
        assert!(check_end(&children(&[0xfe, 0xff, 0xff, 0xff, 7])).is_err());
    }

    #[test]
    fn a_page_has_the_lengths_of_its_header() {
        // Fields 1, 2 and 3: a kind, 4 bytes unpacked, 2 bytes packed.
        let bytes = [0x15, 0, 0x15, 8, 0x15, 4, 0, b'x', b'y'];
        assert_eq!(page(&bytes), Ok(Page { header: 7, packed: 2, unpacked: 4 }));
        assert_eq!(page(&bytes[..6]), Err(Wrong::Ends));
    }
}
