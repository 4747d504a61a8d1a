//! Reads machine code as LLVM's disassembler prints it: instructions with their operands, and labels.

use std::collections::HashMap;

use crate::scalar::{self, Scalar};
use crate::vector::{self, Vector};

/// The number of vector registers, and of scalar registers without a name.
pub const VECTORS: usize = 256;
const SCALARS: usize = 106;

/// The scalar registers that have a name. `vcc` and `exec` are pairs of registers.
pub const VCC: u16 = 106;
pub const NULL: u16 = 124;
pub const M0: u16 = 125;
pub const EXEC: u16 = 126;

/// Where an operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The first of the vector registers.
    Vector(u16),
    /// The first of the scalar registers.
    Scalar(u16),
    /// The flag `scc`.
    Scc,
    /// An integer, extended to 64 bits with its sign, or the bits of a literal.
    Number(u64),
    Off,
}

/// An operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    pub place: Place,
    /// The number of registers.
    pub words: u16,
    pub absolute: bool,
    pub negated: bool,
}

/// Instructions that only affect timing. They do nothing here, because instructions run one after another.
const ORDERS: [&str; 6] =
    ["s_waitcnt", "s_waitcnt_depctr", "s_waitcnt_vscnt", "s_clause", "s_nop", "s_sendmsg"];

/// What an instruction does.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Nothing here, see [`ORDERS`].
    Nothing,
    End,
    Barrier,
    /// Jumps to the instruction of this number.
    Jump(When, usize),
    Scalar(Scalar),
    Vector(Vector),
    /// Loads scalar registers from a buffer, or from the descriptors.
    LoadScalars {
        from_buffer: bool,
        words: u16,
    },
    /// Loads or stores words of a buffer.
    Buffer {
        stores: bool,
        words: u16,
    },
    /// Loads or stores words of a lane's own memory.
    Scratch {
        stores: bool,
        words: u16,
    },
    /// Loads or stores words of the workgroup's memory. For an instruction with two addresses,
    /// `twice` is the unit of their offsets in bytes.
    Shared {
        stores: bool,
        words: u16,
        twice: Option<u32>,
    },
}

/// When a jump is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Always,
    Scc(bool),
    /// If the pair of registers at this number is zero (`true`) or not zero (`false`).
    Zero(u16, bool),
}

/// An instruction.
#[derive(Clone, Debug)]
pub struct Instruction {
    pub op: Op,
    pub operands: Vec<Operand>,
    pub offsets: [u32; 2],
    /// Whether a vector register is added to the address in a buffer.
    pub has_index: bool,
    /// Whether a sum of integers saturates instead of wrapping around.
    pub clamps: bool,
    /// The instruction as it was read.
    pub line: String,
}

/// Returns the instructions of machine code.
///
/// # Errors
/// The first line that is not known.
pub fn read(assembly: &str) -> Result<Vec<Instruction>, String> {
    let code = |line: &str| line.split(';').next().unwrap_or_default().trim().to_owned();
    let lines: Vec<String> = assembly.lines().map(code).filter(|line| !line.is_empty()).collect();
    let mut labels: HashMap<&str, usize> = HashMap::new();
    let mut count = 0;
    for line in &lines {
        match label(line) {
            Some(label) => _ = labels.insert(label, count),
            None => count += 1,
        }
    }
    let instructions = lines.iter().filter(|line| label(line).is_none());
    instructions.map(|line| instruction(line, &labels).ok_or_else(|| format!("not known: {line}"))).collect()
}

/// Returns the label in a line, or `None` if the line is an instruction.
fn label(line: &str) -> Option<&str> {
    line.strip_suffix(':').filter(|name| !name.contains(char::is_whitespace))
}

fn instruction(line: &str, labels: &HashMap<&str, usize>) -> Option<Instruction> {
    let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
    let mut found = Instruction {
        op: Op::Nothing,
        operands: Vec::new(),
        offsets: [0; 2],
        has_index: false,
        clamps: false,
        line: line.to_owned(),
    };
    if ORDERS.contains(&name) {
        return Some(found);
    }
    if let Some(when) = jump(name) {
        found.op = Op::Jump(when, *labels.get(rest.trim())?);
        return Some(found);
    }
    // Modifiers follow the last operand, without commas.
    let mut parts: Vec<&str> = rest.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    let mut settings = parts.pop().unwrap_or_default().split_whitespace();
    parts.extend(settings.next());
    for setting in settings {
        let number = |name: &str| setting.strip_prefix(name).and_then(integer).map(|offset| offset as u32);
        match setting {
            "offen" => found.has_index = true,
            "clamp" => found.clamps = true,
            "glc" | "slc" | "dlc" => {}
            _ => {
                if let Some(offset) = number("offset:").or_else(|| number("offset0:")) {
                    found.offsets[0] = offset;
                } else {
                    found.offsets[1] = number("offset1:")?;
                }
            }
        }
    }
    found.operands = parts.into_iter().map(operand).collect::<Option<_>>()?;
    // These instructions extend a constant of 16 bits with its sign.
    let is_signed = name.starts_with("s_cmpk_") && name.ends_with("_i32");
    if is_signed || ["s_movk_i32", "s_addk_i32", "s_mulk_i32"].contains(&name) {
        let Place::Number(number) = &mut found.operands.get_mut(1)?.place else { return None };
        *number = i64::from(*number as i16) as u64;
    }
    found.op = match name {
        "s_endpgm" => Op::End,
        "s_barrier" => Op::Barrier,
        _ => memory(name)
            .or_else(|| scalar::named(name).map(Op::Scalar))
            .or_else(|| vector::named(name).map(Op::Vector))?,
    };
    if found.clamps && !matches!(found.op, Op::Vector(Vector::Sum(..))) {
        return None;
    }
    Some(found)
}

fn jump(name: &str) -> Option<When> {
    Some(match name {
        "s_branch" => When::Always,
        "s_cbranch_scc0" => When::Scc(false),
        "s_cbranch_scc1" => When::Scc(true),
        "s_cbranch_vccz" => When::Zero(VCC, true),
        "s_cbranch_vccnz" => When::Zero(VCC, false),
        "s_cbranch_execz" => When::Zero(EXEC, true),
        "s_cbranch_execnz" => When::Zero(EXEC, false),
        _ => return None,
    })
}

/// Returns an instruction that reads or writes memory.
fn memory(name: &str) -> Option<Op> {
    let words =
        |bits: &str| Some(bits.strip_prefix('b')?.parse::<u16>().ok()? / 32).filter(|&words| words > 0);
    if let Some(bits) = name.strip_prefix("s_buffer_load_") {
        return Some(Op::LoadScalars { from_buffer: true, words: words(bits)? });
    }
    if let Some(bits) = name.strip_prefix("s_load_") {
        return Some(Op::LoadScalars { from_buffer: false, words: words(bits)? });
    }
    let (kind, stores) = [("load_", false), ("store_", true)].into_iter().find_map(|(verb, stores)| {
        let at = name.find(verb)?;
        Some(((&name[..at], &name[at + verb.len()..]), stores))
    })?;
    match kind {
        ("scratch_", bits) => Some(Op::Scratch { stores, words: words(bits)? }),
        ("buffer_", bits) => Some(Op::Buffer { stores, words: words(bits)? }),
        ("ds_", rest) => {
            let Some(rest) = rest.strip_prefix("2addr_") else {
                return Some(Op::Shared { stores, words: words(rest)?, twice: None });
            };
            let (bits, stride) = rest.strip_prefix("stride64_").map_or((rest, 1), |bits| (bits, 64));
            let words = words(bits)?;
            Some(Op::Shared { stores, words, twice: Some(4 * u32::from(words) * stride) })
        }
        _ => None,
    }
}

fn operand(text: &str) -> Option<Operand> {
    let is_number = |text: &str| text.starts_with(|first: char| first.is_ascii_digit());
    let (text, negated) = match text.strip_prefix('-') {
        Some(rest) if !is_number(rest) => (rest, true),
        _ => (text, false),
    };
    let (text, absolute) = match text.strip_prefix('|') {
        Some(rest) => (rest.strip_suffix('|')?, true),
        None => (text, false),
    };
    let (place, words) = match text {
        "vcc" => (Place::Scalar(VCC), 2),
        "vcc_lo" => (Place::Scalar(VCC), 1),
        "vcc_hi" => (Place::Scalar(VCC + 1), 1),
        "exec" => (Place::Scalar(EXEC), 2),
        "exec_lo" => (Place::Scalar(EXEC), 1),
        "exec_hi" => (Place::Scalar(EXEC + 1), 1),
        "m0" => (Place::Scalar(M0), 1),
        "null" => (Place::Scalar(NULL), 1),
        "src_scc" | "scc" => (Place::Scc, 1),
        "off" => (Place::Off, 1),
        _ => match number(text) {
            Some(number) => (Place::Number(number), 1),
            None => registers(text)?,
        },
    };
    Some(Operand { place, words, absolute, negated })
}

fn registers(text: &str) -> Option<(Place, u16)> {
    let (place, count, numbers): (fn(u16) -> Place, _, _) = match text.split_at_checked(1)? {
        ("v", numbers) => (Place::Vector, VECTORS, numbers),
        ("s", numbers) => (Place::Scalar, SCALARS, numbers),
        _ => return None,
    };
    let (first, last) = match numbers.strip_prefix('[') {
        Some(range) => range.strip_suffix(']')?.split_once(':')?,
        None => (numbers, numbers),
    };
    let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && usize::from(last) < count).then(|| (place(first), last - first + 1))
}

/// Returns a number: an integer, or the bits of a float.
fn number(text: &str) -> Option<u64> {
    let float = || text.parse::<f32>().ok().filter(|_| text.contains('.'));
    integer(text).or_else(|| float().map(|float| float.to_bits().into()))
}

fn integer(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse::<i64>().ok().map(|number| number as u64),
    }
}
