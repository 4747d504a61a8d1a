//! Makes the instructions of a kernel. If the kernel does the same to all four components of a vector, that
//! is one instruction over the vectors of all invocations, in memory order.

use std::collections::HashMap;

use super::graph::{Code, Graph, Id, Node, Store};
use super::order::is_effect;
use super::pass::Pass;

/// A value's place in the plan.
pub(super) type Value = u32;

/// How many words a value has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Width {
    /// 16, which repeat, and are the same in the whole launch.
    Launch,
    /// 16, which repeat.
    Block,
    /// One for each invocation.
    One,
    /// Four for each invocation, next to one another.
    Four,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Number(u32),
    /// Four numbers, one for each component.
    Numbers([u32; 4]),
    Param {
        binding: u32,
        word: u32,
    },
    Place(u8),
    /// The first component of the place of the block's first invocation.
    First,
    /// A word at the index of each word.
    Load {
        binding: u32,
        epoch: u32,
    },
    /// The four words at the index of each invocation. The index counts words, or vectors.
    LoadFour {
        binding: u32,
        epoch: u32,
        counts: Counts,
    },
    /// A component of each vector.
    Part(u8),
    /// Each word four times.
    Repeat,
    /// The components from four values.
    Mix,
    /// An operation, and whether its result is made canonical.
    Op(Code, bool),
    StoreWord {
        binding: u32,
    },
    StoreFour {
        binding: u32,
    },
    StoreIfAny {
        binding: u32,
        at: u32,
        value: u32,
    },
    End,
    /// The pass of this number.
    Pass(u32),
}

/// What the index of four words counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Counts {
    Words,
    Vectors,
}

/// An action with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Step {
    pub action: Action,
    pub operands: [Value; 4],
    /// Whether the words that are loaded or stored lie one behind another. Then the index is that of the
    /// first of them.
    pub in_row: bool,
}

/// Where a value is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot {
    pub at: u32,
    /// Whether it has 16 words, which repeat.
    pub repeats: bool,
}

/// A step with the places of its operands and of its result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instruction {
    pub action: Action,
    pub width: Width,
    pub operands: [Slot; 4],
    pub to: Slot,
    pub in_row: bool,
}

/// The instructions of a kernel.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// What is the same in the whole launch.
    pub once: Vec<Instruction>,
    /// What says which invocations end early.
    pub first: Vec<Instruction>,
    /// What is the same in the whole launch, and may only be loaded if there is an invocation.
    pub late: Vec<Instruction>,
    pub rest: Vec<Instruction>,
    pub passes: Vec<Pass>,
    /// The number of slots of 16 words, and of whole ones.
    pub short: u32,
    pub whole: u32,
}

#[derive(Default)]
pub(super) struct Planner {
    pub steps: Vec<Step>,
    widths: Vec<Width>,
    known: HashMap<Step, Value>,
    ones: HashMap<Id, Value>,
    fours: HashMap<[Id; 4], Value>,
    /// How often each node of the graph is used.
    uses: Vec<u32>,
}

/// Returns the plan of a kernel, with passes if there is code for them.
pub(super) fn plan(graph: &Graph, has_passes: bool) -> Plan {
    let mut planner = Planner { uses: uses(graph), ..Planner::default() };
    let mut ends = Vec::new();
    for &end in &graph.ends {
        let truth = planner.one(graph, end);
        ends.push(planner.step(Action::End, &[truth], Width::One));
    }
    let mut stores = Vec::new();
    for (epoch, store) in graph.stores.iter().enumerate() {
        let (step, binding) = match *store {
            Store::Word { binding, index, value } => {
                let index = planner.one(graph, index);
                let value = planner.one(graph, value);
                (planner.stored(Action::StoreWord { binding }, index, value, Width::One), binding)
            }
            Store::Four { binding, index, values } => {
                let index = planner.one(graph, index);
                let values = planner.four(graph, values);
                (planner.stored(Action::StoreFour { binding }, index, values, Width::Four), binding)
            }
            Store::IfAny { binding, at, words, value } => {
                let (words, width) = match words.iter().all(|word| *word == words[0]) {
                    true => (planner.one(graph, words[0]), Width::One),
                    false => (planner.four(graph, words), Width::Four),
                };
                (planner.step(Action::StoreIfAny { binding, at, value }, &[words], width), binding)
            }
        };
        stores.push((epoch as u32, binding, step));
    }
    planner.in_order(&ends, &stores, has_passes)
}

/// Returns how often each node is used.
fn uses(graph: &Graph) -> Vec<u32> {
    let mut uses = vec![0; graph.nodes.len()];
    let mut used = |id: Id| uses[id as usize] += 1;
    for node in &graph.nodes {
        match *node {
            Node::Op(_, operands) => operands.into_iter().for_each(&mut used),
            Node::Load { index, .. } | Node::LoadPart { index, .. } => used(index),
            _ => {}
        }
    }
    graph.ends.iter().copied().for_each(&mut used);
    for store in &graph.stores {
        match *store {
            Store::Word { index, value, .. } => [index, value].into_iter().for_each(&mut used),
            Store::Four { index, values, .. } => {
                used(index);
                values.into_iter().for_each(&mut used);
            }
            Store::IfAny { words, .. } => words.into_iter().for_each(&mut used),
        }
    }
    uses
}

impl Planner {
    pub fn width(&self, value: Value) -> Width {
        self.widths[value as usize]
    }

    /// Returns the value of a step. It has at least this width. A step is made once, unless it is a store.
    fn step(&mut self, action: Action, operands: &[Value], least: Width) -> Value {
        let mut all = [operands.first().copied().unwrap_or_default(); 4];
        all[..operands.len()].copy_from_slice(operands);
        self.add(Step { action, operands: all, in_row: false }, operands.len(), least)
    }

    fn add(&mut self, step: Step, operands: usize, least: Width) -> Value {
        let own = step.operands[..operands].iter().map(|operand| self.width(*operand)).max();
        let width = own.unwrap_or(Width::Launch).max(least);
        // A store that is written twice happens twice: another one to its place may stand between both.
        let is_value = !is_effect(step.action);
        if let Some(&known) = self.known.get(&step).filter(|_| is_value) {
            return known;
        }
        let next = self.steps.len() as Value;
        self.steps.push(step);
        self.widths.push(width);
        if is_value {
            self.known.insert(step, next);
        }
        next
    }

    fn stored(&mut self, action: Action, index: Value, value: Value, width: Width) -> Value {
        let (index, in_row) = self.index(index);
        self.add(Step { action, operands: [index, value, index, index], in_row }, 2, width)
    }

    /// Returns the index that a load or store needs, and whether it is that of the first word, behind which
    /// the others lie.
    fn index(&mut self, index: Value) -> (Value, bool) {
        if self.in_row(index) { (self.first(index), true) } else { (index, false) }
    }

    /// Returns the first word of a value whose words follow one another.
    fn first(&mut self, value: Value) -> Value {
        let Step { action: Action::Op(..), operands: [a, b, ..], .. } = self.steps[value as usize] else {
            return self.step(Action::First, &[], Width::Block);
        };
        let both = if self.in_row(a) { [self.first(a), b] } else { [a, self.first(b)] };
        self.step(Action::Op(Code::AddWord, false), &both, Width::Launch)
    }

    /// Returns whether the words of a value follow one another from invocation to invocation.
    fn in_row(&self, value: Value) -> bool {
        let step = self.steps[value as usize];
        match step.action {
            Action::Place(0) => true,
            Action::Op(Code::AddWord, false) => {
                let [a, b, ..] = step.operands;
                let is_same = |value| self.width(value) <= Width::Block;
                self.in_row(a) && is_same(b) || self.in_row(b) && is_same(a)
            }
            _ => false,
        }
    }

    /// Returns a node's value for each invocation.
    fn one(&mut self, graph: &Graph, id: Id) -> Value {
        if let Some(&known) = self.ones.get(&id) {
            return known;
        }
        let value = match graph.nodes[id as usize] {
            Node::Number(number) => self.step(Action::Number(number), &[], Width::Launch),
            Node::Param { binding, word } => self.step(Action::Param { binding, word }, &[], Width::Launch),
            Node::Place(0) => self.step(Action::Place(0), &[], Width::One),
            Node::Place(axis) => self.step(Action::Place(axis), &[], Width::Block),
            Node::Load { binding, index, epoch } => {
                let index = self.one(graph, index);
                self.load(Action::Load { binding, epoch }, index, least(epoch))
            }
            Node::LoadPart { binding, index, part, epoch } => {
                let index = self.one(graph, index);
                let counts = Counts::Vectors;
                let all = self.load(Action::LoadFour { binding, epoch, counts }, index, Width::Four);
                self.part(all, part)
            }
            Node::Op(code, operands) => {
                let (code, flushes, operands) = self.operation(graph, code, operands);
                let operands = operands.map(|operand| self.one(graph, operand));
                self.step(Action::Op(code, flushes), &operands, Width::Launch)
            }
        };
        self.ones.insert(id, value);
        value
    }

    fn part(&mut self, all: Value, part: u8) -> Value {
        let value = self.step(Action::Part(part), &[all], Width::One);
        self.widths[value as usize] = Width::One;
        value
    }

    fn load(&mut self, action: Action, index: Value, least: Width) -> Value {
        let (index, in_row) = self.index(index);
        let least = if in_row { least.max(Width::One) } else { least };
        self.add(Step { action, operands: [index; 4], in_row }, 1, least)
    }

    /// Joins an operation with the one behind it that makes its result canonical.
    fn operation(&self, graph: &Graph, code: Code, operands: [Id; 3]) -> (Code, bool, [Id; 3]) {
        if code == Code::Flush
            && let Node::Op(before, own) = graph.nodes[operands[0] as usize]
            && before != Code::Flush
            // All operands of an operation of one word are the same, and count three times.
            && self.uses[operands[0] as usize] == 3
        {
            return (before, true, own);
        }
        (code, false, operands)
    }

    /// Returns the values of four nodes, next to one another.
    fn four(&mut self, graph: &Graph, ids: [Id; 4]) -> Value {
        if let Some(&known) = self.fours.get(&ids) {
            return known;
        }
        let value = match self.alike(graph, ids) {
            Some(value) => value,
            None => {
                let ones = ids.map(|id| self.one(graph, id));
                self.step(Action::Mix, &ones, Width::Four)
            }
        };
        self.fours.insert(ids, value);
        value
    }

    /// Returns the values of four nodes that are computed alike.
    fn alike(&mut self, graph: &Graph, ids: [Id; 4]) -> Option<Value> {
        if ids.iter().all(|id| *id == ids[0]) {
            let one = self.one(graph, ids[0]);
            return Some(match self.width(one) {
                Width::Launch | Width::Block => one,
                _ => self.step(Action::Repeat, &[one], Width::Four),
            });
        }
        let nodes = ids.map(|id| graph.nodes[id as usize]);
        let numbers = nodes.map(|node| match node {
            Node::Number(number) => Some(number),
            _ => None,
        });
        if let [Some(x), Some(y), Some(z), Some(w)] = numbers {
            return Some(self.step(Action::Numbers([x, y, z, w]), &[], Width::Launch));
        }
        // Sums of one word, or of words that are computed alike, with different numbers.
        let split = ids.map(|id| graph.split(id));
        if split.iter().any(|(_, number)| *number != 0) {
            let base = self.four(graph, split.map(|(base, _)| base));
            let [x, y, z, w] = split.map(|(_, number)| number);
            let action =
                if [x, y, z, w] == [x; 4] { Action::Number(x) } else { Action::Numbers([x, y, z, w]) };
            let numbers = self.step(action, &[], Width::Launch);
            return Some(self.step(Action::Op(Code::AddWord, false), &[base, numbers], Width::Launch));
        }
        match nodes[0] {
            Node::LoadPart { binding, index, epoch, .. } => {
                let expected = |at: usize| Node::LoadPart { binding, index, part: at as u8, epoch };
                if (0..4).any(|at| nodes[at] != expected(at)) {
                    return None;
                }
                let index = self.one(graph, index);
                let counts = Counts::Vectors;
                Some(self.load(Action::LoadFour { binding, epoch, counts }, index, Width::Four))
            }
            Node::Load { binding, epoch, .. } => {
                let mut indices = [0; 4];
                for (to, node) in indices.iter_mut().zip(nodes) {
                    match node {
                        Node::Load { binding: other, index, epoch: at }
                            if (other, at) == (binding, epoch) =>
                        {
                            *to = index;
                        }
                        _ => return None,
                    }
                }
                let (first, number) = graph.split(indices[0]);
                let follow =
                    |(at, id): (usize, &Id)| graph.split(*id) == (first, number.wrapping_add(at as u32));
                let index = self.one(graph, indices[0]);
                let differs = self.width(index) > Width::Block;
                let (action, index, least) = if differs && indices.iter().enumerate().all(follow) {
                    let action = Action::LoadFour { binding, epoch, counts: Counts::Words };
                    (action, index, Width::Four)
                } else {
                    (Action::Load { binding, epoch }, self.four(graph, indices), least(epoch))
                };
                Some(self.add(Step { action, operands: [index; 4], in_row: false }, 1, least))
            }
            Node::Op(..) => {
                let mut own = Vec::new();
                for node in nodes {
                    let Node::Op(code, operands) = node else { return None };
                    own.push(self.operation(graph, code, operands));
                }
                let (code, flushes, _) = own[0];
                if own.iter().any(|other| (other.0, other.1) != (code, flushes)) {
                    return None;
                }
                // One instruction divides all four lanes by the same number.
                let divides = matches!(code, Code::Quotient | Code::Rest);
                if divides && own.iter().any(|other| other.2[1] != own[0].2[1]) {
                    return None;
                }
                let operands: [Value; 3] =
                    std::array::from_fn(|at| self.four(graph, std::array::from_fn(|lane| own[lane].2[at])));
                Some(self.step(Action::Op(code, flushes), &operands, Width::Launch))
            }
            _ => None,
        }
    }
}

/// Returns how wide what is loaded is at least: behind a store it is loaded again for each block.
fn least(epoch: u32) -> Width {
    if epoch == 0 { Width::Launch } else { Width::Block }
}
