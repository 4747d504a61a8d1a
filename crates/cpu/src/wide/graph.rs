//! What one invocation of a kernel without loops computes, as a graph of 32-bit words: numbers by their bits,
//! and truths as all bits or none.

use std::collections::{BTreeSet, HashMap};

/// A node's place in its graph.
pub(super) type Id = u32;

/// An operation on words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Code {
    // Of floats.
    Add,
    Sub,
    Mul,
    Div,
    Fma,
    Sqrt,
    Flush,
    // Functions of the kernels.
    Exp,
    Log,
    Tanh,
    Erf,
    Sigmoid,
    // Of integers.
    AddWord,
    SubWord,
    MulWord,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    ShiftRightSigned,
    Min,
    Max,
    MinSigned,
    MaxSigned,
    /// The quotient by a number that is not 0, which is the second operand.
    Quotient,
    /// What remains of it.
    Rest,
    // Comparisons.
    Equal,
    Less,
    LessEqual,
    LessSigned,
    LessEqualSigned,
    EqualFloat,
    LessFloat,
    LessEqualFloat,
    /// The second operand where the first is true, otherwise the third.
    Select,
    // Conversions.
    FloatOfWord,
    FloatOfSigned,
    WordOfFloat,
    SignedOfFloat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Node {
    Number(u32),
    /// A word of a uniform buffer.
    Param {
        binding: u32,
        word: u32,
    },
    /// A component of the invocation's number in its launch.
    Place(u8),
    /// A word of a buffer. The epoch is the number of stores before it.
    Load {
        binding: u32,
        index: Id,
        epoch: u32,
    },
    /// A component of the vector of four words at an index, counted in vectors.
    LoadPart {
        binding: u32,
        index: Id,
        part: u8,
        epoch: u32,
    },
    Op(Code, [Id; 3]),
}

/// What a kernel writes, in its order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Store {
    Word {
        binding: u32,
        index: Id,
        value: Id,
    },
    Four {
        binding: u32,
        index: Id,
        values: [Id; 4],
    },
    /// One number, at one place, if any of the words is true.
    IfAny {
        binding: u32,
        at: u32,
        words: [Id; 4],
        value: u32,
    },
}

/// The nodes of a kernel, each of them once.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub nodes: Vec<Node>,
    known: HashMap<Node, Id>,
    /// An invocation for which one of these is true does nothing.
    pub ends: Vec<Id>,
    pub stores: Vec<Store>,
}

impl Graph {
    pub fn node(&mut self, node: Node) -> Id {
        let next = self.nodes.len() as Id;
        let id = *self.known.entry(node).or_insert(next);
        if id == next {
            self.nodes.push(node);
        }
        id
    }

    /// Returns whether there are functions that take many operations.
    pub fn has_functions(&self) -> bool {
        use Code::{Erf, Exp, Log, Sigmoid, Tanh};
        self.nodes.iter().any(|node| matches!(node, Node::Op(Exp | Log | Tanh | Erf | Sigmoid, _)))
    }

    /// Returns whether there are square roots.
    pub fn has_roots(&self) -> bool {
        self.nodes.iter().any(|node| matches!(node, Node::Op(Code::Sqrt, _)))
    }

    /// Returns each two different bindings, the first of which is loaded from and the second of which is
    /// stored to.
    pub fn apart(&self) -> Vec<[u32; 2]> {
        let loaded = |node: &Node| match *node {
            Node::Load { binding, .. } | Node::LoadPart { binding, .. } => Some(binding),
            _ => None,
        };
        let stored = |store: &Store| match *store {
            Store::Word { binding, .. } | Store::Four { binding, .. } | Store::IfAny { binding, .. } => {
                binding
            }
        };
        let written: BTreeSet<u32> = self.stores.iter().map(stored).collect();
        let read: BTreeSet<u32> = self.nodes.iter().filter_map(loaded).collect();
        let pairs = read.iter().flat_map(|read| written.iter().map(move |written| [*read, *written]));
        pairs.filter(|[read, written]| read != written).collect()
    }

    /// Returns whether a node needs a load whose place is not a known number.
    pub fn loads_by_invocation(&self, id: Id) -> bool {
        let mut open = vec![id];
        let mut is_seen = vec![false; self.nodes.len()];
        while let Some(id) = open.pop() {
            if std::mem::replace(&mut is_seen[id as usize], true) {
                continue;
            }
            match self.nodes[id as usize] {
                Node::Load { index, .. } | Node::LoadPart { index, .. } if self.known(index).is_none() => {
                    return true;
                }
                Node::Op(_, operands) => open.extend(operands),
                _ => {}
            }
        }
        false
    }

    pub fn number(&mut self, number: u32) -> Id {
        self.node(Node::Number(number))
    }

    /// Returns the number that a node is, if that is known.
    pub fn known(&self, id: Id) -> Option<u32> {
        match self.nodes[id as usize] {
            Node::Number(number) => Some(number),
            _ => None,
        }
    }

    /// Returns an operation's result, which may be simpler than the operation.
    pub fn op(&mut self, code: Code, operands: &[Id]) -> Id {
        let mut all = [0; 3];
        all[..operands.len()].copy_from_slice(operands);
        let [a, b, c] = all;
        if code == Code::Select {
            if b == c {
                return b;
            }
            if let Some(truth) = self.known(a) {
                return if truth != 0 { b } else { c };
            }
        }
        if let [_, _] = operands {
            if let (Some(x), Some(y)) = (self.known(a), self.known(b))
                && let Some(folded) = folded(code, x, y)
            {
                return self.number(folded);
            }
            if let Some(same) = self.reduced(code, a, b) {
                return same;
            }
        }
        // All nodes need operands that exist.
        for unused in &mut all[operands.len()..] {
            *unused = a;
        }
        self.node(Node::Op(code, all))
    }

    /// Returns what an operation of two words with a known number comes to, if that is less than itself.
    fn reduced(&mut self, code: Code, a: Id, b: Id) -> Option<Id> {
        // Numbers of sums and products stand behind.
        let (a, b) = match (code, self.known(a)) {
            (Code::AddWord | Code::MulWord | Code::And | Code::Or | Code::Xor, Some(_)) => (b, a),
            _ => (a, b),
        };
        let number = self.known(b)?;
        match (code, number) {
            (
                Code::AddWord
                | Code::SubWord
                | Code::Or
                | Code::Xor
                | Code::ShiftLeft
                | Code::ShiftRight
                | Code::ShiftRightSigned,
                0,
            )
            | (Code::MulWord | Code::Quotient, 1)
            | (Code::And, u32::MAX) => Some(a),
            (Code::MulWord | Code::And, 0) | (Code::Rest, 1) => Some(self.number(0)),
            (Code::Or, u32::MAX) => Some(self.number(u32::MAX)),
            (Code::SubWord, _) => Some(self.sum(a, number.wrapping_neg())),
            (Code::AddWord, _) => Some(self.sum(a, number)),
            (Code::Quotient, _) if number.is_power_of_two() => {
                let by = self.number(number.trailing_zeros());
                Some(self.op(Code::ShiftRight, &[a, by]))
            }
            (Code::Rest, _) if number.is_power_of_two() => {
                let mask = self.number(number - 1);
                Some(self.op(Code::And, &[a, mask]))
            }
            _ => None,
        }
    }

    /// Returns a word and a number added. There is one number in a sum.
    fn sum(&mut self, word: Id, number: u32) -> Id {
        let (base, before) = self.split(word);
        let number = self.number(before.wrapping_add(number));
        if self.known(number) == Some(0) {
            return base;
        }
        self.node(Node::Op(Code::AddWord, [base, number, base]))
    }

    /// Returns a word as a sum of another one and a number.
    pub fn split(&self, word: Id) -> (Id, u32) {
        match self.nodes[word as usize] {
            Node::Op(Code::AddWord, [base, number, _]) => match self.known(number) {
                Some(number) => (base, number),
                None => (word, 0),
            },
            _ => (word, 0),
        }
    }
}

fn folded(code: Code, x: u32, y: u32) -> Option<u32> {
    let truth = |truth: bool| if truth { u32::MAX } else { 0 };
    let (signed_x, signed_y) = (x as i32, y as i32);
    Some(match code {
        Code::AddWord => x.wrapping_add(y),
        Code::SubWord => x.wrapping_sub(y),
        Code::MulWord => x.wrapping_mul(y),
        Code::And => x & y,
        Code::Or => x | y,
        Code::Xor => x ^ y,
        Code::ShiftLeft => x.checked_shl(y)?,
        Code::ShiftRight => x.checked_shr(y)?,
        Code::Min => x.min(y),
        Code::Max => x.max(y),
        Code::MinSigned => signed_x.min(signed_y) as u32,
        Code::MaxSigned => signed_x.max(signed_y) as u32,
        Code::Quotient => x.checked_div(y)?,
        Code::Rest => x.checked_rem(y)?,
        Code::Equal => truth(x == y),
        Code::Less => truth(x < y),
        Code::LessEqual => truth(x <= y),
        Code::LessSigned => truth(signed_x < signed_y),
        Code::LessEqualSigned => truth(signed_x <= signed_y),
        _ => return None,
    })
}
