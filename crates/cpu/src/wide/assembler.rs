//! Writes instructions of AVX-512, which Cranelift's assembler has for vectors of four numbers alone.
//!
//! The encoding is that of the "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 2, 2.7
//! (EVEX). Memory is always addressed with an offset of 32 bits, whose encoding is the same for all sizes.

/// A register of sixteen numbers, from 0 to 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vector(pub u8);

/// A mask of sixteen bits, from 1 to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mask(pub u8);

/// A register for addresses, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Base {
    Rax = 0,
    Rdx = 2,
    Rsi = 6,
    Rdi = 7,
}

/// The last operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Register(Vector),
    /// Sixteen numbers at an address, to which [`Assembler::advance`]'s bytes are added if `moves`.
    Memory {
        base: Base,
        moves: bool,
        offset: i32,
    },
}

/// What happens to the numbers of a result for which a mask is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Masked {
    No,
    /// They become 0.
    Zero(Mask),
    /// They stay what they are.
    Keep(Mask),
}

/// The prefix that an opcode stands for, by its number in the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Prefix {
    None = 0,
    P66 = 1,
    Pf2 = 3,
}

/// The table of opcodes, by its number in the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Table {
    T0f = 1,
    T0f38 = 2,
    T0f3a = 3,
}

/// An instruction. If its name ends in `_D`, it computes with integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name(Prefix, Table, u8);

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident: $prefix:ident $table:ident $code:literal;)+) => {
        impl Name {
            $($(#[$doc])* pub const $name: Self = Self(Prefix::$prefix, Table::$table, $code);)+
        }
    };
}

names! {
    LOAD: None T0f 0x10;
    STORE: None T0f 0x11;
    SQRT: None T0f 0x51;
    AND: P66 T0f 0xdb;
    OR: P66 T0f 0xeb;
    XOR: P66 T0f 0xef;
    ADD: None T0f 0x58;
    MUL: None T0f 0x59;
    SUB: None T0f 0x5c;
    DIV: None T0f 0x5e;
    /// The first operand, which is the result, becomes second * third + first.
    FMA_231: P66 T0f38 0xb8;
    /// The first operand, which is the result, becomes second * first + third.
    FMA_213: P66 T0f38 0xa8;
    ADD_D: P66 T0f 0xfe;
    SUB_D: P66 T0f 0xfa;
    MUL_D: P66 T0f38 0x40;
    SHIFT_LEFT: P66 T0f38 0x47;
    SHIFT_RIGHT: P66 T0f38 0x45;
    SHIFT_RIGHT_SIGNED: P66 T0f38 0x46;
    MIN_UNSIGNED: P66 T0f38 0x3b;
    MAX_UNSIGNED: P66 T0f38 0x3f;
    MIN_SIGNED: P66 T0f38 0x39;
    MAX_SIGNED: P66 T0f38 0x3d;
    COMPARE: None T0f 0xc2;
    COMPARE_UNSIGNED: P66 T0f3a 0x1e;
    COMPARE_SIGNED: P66 T0f3a 0x1f;
    /// Any function of three bits, which is given as a table of eight bits.
    TERNARY: P66 T0f3a 0x25;
    FLOAT_OF_SIGNED: None T0f 0x5b;
    FLOAT_OF_UNSIGNED: Pf2 T0f 0x7a;
}

/// Instructions as bytes.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    pub bytes: Vec<u8>,
}

impl Assembler {
    /// Writes an instruction of two operands. `to` is what it writes, or for a store what it reads.
    pub fn two(&mut self, name: Name, to: Vector, from: Operand, masked: Masked) {
        self.encode(name, to.0, 0, from, masked);
    }

    /// Writes an instruction that computes `to` from `first` and `second`.
    pub fn three(&mut self, name: Name, to: Vector, first: Vector, second: Operand) {
        self.encode(name, to.0, first.0, second, Masked::No);
    }

    /// Writes a comparison by its number in the encoding: 0 is equal, 1 less, 2 less or equal, 6 greater.
    pub fn compare(&mut self, name: Name, to: Mask, first: Vector, second: Operand, by: u8) {
        self.encode(name, to.0, first.0, second, Masked::No);
        self.bytes.push(by);
    }

    /// Writes a function of three bits. Bit 4 * to + 2 * first + second of `table` is the result.
    pub fn ternary(&mut self, to: Vector, first: Vector, second: Operand, table: u8, masked: Masked) {
        self.encode(Name::TERNARY, to.0, first.0, second, masked);
        self.bytes.push(table);
    }

    fn encode(&mut self, Name(prefix, table, code): Name, to: u8, first: u8, last: Operand, masked: Masked) {
        let (mask, zeroes) = match masked {
            Masked::No => (0, 0),
            Masked::Zero(Mask(mask)) => (mask, 1),
            Masked::Keep(Mask(mask)) => (mask, 0),
        };
        let last_bits = match last {
            Operand::Register(Vector(number)) => number,
            Operand::Memory { .. } => 0,
        };
        // Bits 3 and 4 of registers stand in the prefix, inverted.
        let bit = |number: u8, bit: u8| number >> bit & 1 ^ 1;
        let extended = bit(to, 3) << 7 | bit(last_bits, 4) << 6 | bit(last_bits, 3) << 5 | bit(to, 4) << 4;
        let inner = (!first & 15) << 3 | 1 << 2 | prefix as u8;
        // Vectors of 512 bits.
        let outer = zeroes << 7 | 2 << 5 | bit(first, 4) << 3 | mask;
        self.bytes.extend([0x62, extended | table as u8, inner, outer, code]);
        match last {
            Operand::Register(Vector(number)) => self.bytes.push(0xc0 | (to & 7) << 3 | number & 7),
            Operand::Memory { base, moves: false, offset } => {
                self.bytes.push(0x80 | (to & 7) << 3 | base as u8);
                self.bytes.extend(offset.to_le_bytes());
            }
            Operand::Memory { base, moves: true, offset } => {
                // The index is rcx.
                self.bytes.extend([0x80 | (to & 7) << 3 | 4, 1 << 3 | base as u8]);
                self.bytes.extend(offset.to_le_bytes());
            }
        }
    }

    /// Writes a word to all parts of a register. Changes `eax`.
    pub fn repeat(&mut self, to: Vector, word: u32) {
        self.bytes.push(0xb8);
        self.bytes.extend(word.to_le_bytes());
        let name = Name(Prefix::P66, Table::T0f38, 0x7c);
        self.encode(name, to.0, 0, Operand::Register(Vector(Base::Rax as u8)), Masked::No);
    }

    /// Loads `rax` from an array of addresses.
    pub fn load_rax(&mut self, array: Base, number: usize) {
        self.bytes.extend([0x48, 0x8b, 0x80 | array as u8]);
        self.bytes.extend((8 * number as i32).to_le_bytes());
    }

    /// Writes the loop of a function whose fourth argument is a number of bytes and whose fifth is a mask:
    /// `body` for every 64 bytes, and once more under mask `k1` if the last argument is not 0. Then returns
    /// from the function.
    pub fn advance(&mut self, mut body: impl FnMut(&mut Self, Masked)) {
        self.bytes.extend([0x49, 0x89, 0xc9]); // mov r9, rcx
        self.bytes.extend([0xc4, 0xc1, 0x78, 0x92, 0xc8]); // kmovw k1, r8d
        self.bytes.extend([0x31, 0xc9]); // xor ecx, ecx
        self.bytes.extend([0x4d, 0x85, 0xc9]); // test r9, r9
        let to_rest = self.jump(&[0x0f, 0x84]); // je rest
        let first = self.bytes.len();
        body(self, Masked::No);
        self.bytes.extend([0x48, 0x83, 0xc1, 0x40]); // add rcx, 64
        self.bytes.extend([0x4c, 0x39, 0xc9]); // cmp rcx, r9
        let back = self.jump(&[0x0f, 0x82]); // jb first
        self.land(back, first);
        self.land(to_rest, self.bytes.len());
        self.bytes.extend([0x45, 0x85, 0xc0]); // test r8d, r8d
        let to_end = self.jump(&[0x0f, 0x84]); // je end
        body(self, Masked::Keep(Mask(1)));
        self.land(to_end, self.bytes.len());
        self.bytes.extend([0xc5, 0xf8, 0x77]); // vzeroupper
        self.bytes.push(0xc3); // ret
    }

    /// Writes a jump to a place that [`Self::land`] sets, and returns where it does.
    fn jump(&mut self, code: &[u8]) -> usize {
        self.bytes.extend(code);
        self.bytes.extend([0; 4]);
        self.bytes.len()
    }

    fn land(&mut self, jump: usize, to: usize) {
        let distance = to as i32 - jump as i32;
        self.bytes[jump - 4..jump].copy_from_slice(&distance.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes are those of the GNU assembler.
    #[test]
    fn instructions_have_the_bytes_of_the_gnu_assembler() {
        let register = |number| Operand::Register(Vector(number));
        let memory = |base, moves, offset| Operand::Memory { base, moves, offset };
        let mut all = Assembler::default();
        all.three(Name::ADD, Vector(17), Vector(9), register(30));
        all.three(Name::FMA_231, Vector(3), Vector(31), memory(Base::Rsi, true, 0x1000));
        all.two(Name::STORE, Vector(20), memory(Base::Rax, true, 0), Masked::Keep(Mask(1)));
        all.two(Name::LOAD, Vector(20), memory(Base::Rdx, false, 0x40), Masked::Zero(Mask(1)));
        all.compare(Name::COMPARE_SIGNED, Mask(2), Vector(26), register(31), 6);
        all.ternary(Vector(5), Vector(5), register(5), 0xff, Masked::Zero(Mask(2)));
        all.three(Name::SHIFT_LEFT, Vector(8), Vector(16), register(27));
        all.two(Name::FLOAT_OF_UNSIGNED, Vector(1), register(24), Masked::No);
        all.repeat(Vector(30), 0x7fff_ffff);
        let expected: &[&[u8]] = &[
            &[0x62, 0x81, 0x34, 0x48, 0x58, 0xce],
            &[0x62, 0xf2, 0x05, 0x40, 0xb8, 0x9c, 0x0e, 0x00, 0x10, 0x00, 0x00],
            &[0x62, 0xe1, 0x7c, 0x49, 0x11, 0xa4, 0x08, 0x00, 0x00, 0x00, 0x00],
            &[0x62, 0xe1, 0x7c, 0xc9, 0x10, 0xa2, 0x40, 0x00, 0x00, 0x00],
            &[0x62, 0x93, 0x2d, 0x40, 0x1f, 0xd7, 0x06],
            &[0x62, 0xf3, 0x55, 0xca, 0x25, 0xed, 0xff],
            &[0x62, 0x12, 0x7d, 0x40, 0x47, 0xc3],
            &[0x62, 0x91, 0x7f, 0x48, 0x7a, 0xc8],
            &[0xb8, 0xff, 0xff, 0xff, 0x7f, 0x62, 0x62, 0x7d, 0x48, 0x7c, 0xf0],
        ];
        assert_eq!(all.bytes, expected.concat());
    }
}
