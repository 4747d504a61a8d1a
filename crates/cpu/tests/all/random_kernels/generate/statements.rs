//! Random statements.

use super::super::program::*;
use super::{Around, Generator, Kind, Name};

impl Generator {
    pub(super) fn block(&mut self, around: Around, depth: usize) -> Vec<Stmt> {
        let before = self.names.len();
        let found = self.statements(around, depth);
        self.names.truncate(before);
        found
    }

    pub(super) fn statements(&mut self, around: Around, depth: usize) -> Vec<Stmt> {
        let mut found = Vec::new();
        for _ in 0..1 + self.random.below(5) {
            if self.left == 0 {
                break;
            }
            self.left -= 1;
            let before = found.len();
            self.statement(around, depth, &mut found);
            if matches!(found[before..].last(), Some(Stmt::Break | Stmt::Continue | Stmt::Return(_))) {
                break;
            }
        }
        found
    }

    pub(super) fn statement(&mut self, around: Around, depth: usize, found: &mut Vec<Stmt>) {
        let deep = depth > 0;
        if around.in_loop && !around.in_continuing && self.random.chance(10) {
            let leave = if around.continues && self.random.chance(50) { Stmt::Continue } else { Stmt::Break };
            let condition = self.expr(&BOOL, 2);
            found.push(Stmt::If(condition, vec![leave], Vec::new()));
            return;
        }
        match self.random.below(28) {
            0..4 => {
                let ty = self.ty(2, true);
                let value = self.expr(&ty, 3);
                found.push(Stmt::Let(self.name(Kind::Value, ty), value));
            }
            4..7 => {
                let ty = self.ty(2, true);
                let first = self.random.chance(75).then(|| self.expr(&ty, 3));
                found.push(Stmt::Var(self.name(Kind::Variable, ty), first));
            }
            7 => {
                let ty = self.ty(1, true);
                if let Some(place) = self.place(&ty, true).filter(|place| self.can_point(place)) {
                    found.push(Stmt::LetPointer(self.name(Kind::Pointer, ty), place));
                }
            }
            8..13 => self.assignment(found),
            13 | 14 => self.call_statement(found),
            15..18 if deep => {
                let condition = self.expr(&BOOL, 2);
                let yes = self.block(around, depth - 1);
                let no = if self.random.chance(50) { self.block(around, depth - 1) } else { Vec::new() };
                found.push(Stmt::If(condition, yes, no));
            }
            18 if deep => self.switch(around, depth - 1, found),
            19..23 if deep => self.counted(depth - 1, found),
            23 | 24 if deep => self.other_loop(depth - 1, found),
            25 if deep => found.push(Stmt::Block(self.block(around, depth - 1))),
            27 if !self.is_main && self.continuing == 0 => {
                let value = self.function.result.clone().map(|ty| self.expr(&ty, 2));
                let leave = Stmt::Return(value);
                if self.random.chance(80) {
                    let condition = self.expr(&BOOL, 2);
                    found.push(Stmt::If(condition, vec![leave], Vec::new()));
                } else {
                    found.push(leave);
                }
            }
            _ => self.assignment(found),
        }
    }

    pub(super) fn assignment(&mut self, found: &mut Vec<Stmt>) {
        for _ in 0..10 {
            let ty = self.ty(2, true);
            let Some(place) = self.place(&ty, true) else { continue };
            let is_number = ty.width().is_some() && ty.scalar() != Some(Scalar::Bool);
            if is_number && self.random.chance(40) {
                let value = self.expr(&ty, 2);
                found.push(Stmt::Compound(place, self.random.of(&["+", "-", "*"]), value));
                return;
            }
            let value = self.expr(&ty, 3);
            found.push(Stmt::Store(place, value));
            return;
        }
    }

    pub(super) fn call_statement(&mut self, found: &mut Vec<Stmt>) {
        if self.program.functions.is_empty() {
            return;
        }
        let number = self.random.below(self.program.functions.len());
        let Some(arguments) = self.arguments(number) else { return };
        match self.program.functions[number].result.clone() {
            Some(ty) => {
                let value = Expr { ty: ty.clone(), node: Node::Call(number, arguments) };
                found.push(Stmt::Let(self.name(Kind::Value, ty), value));
            }
            None => found.push(Stmt::Call(number, arguments)),
        }
    }

    pub(super) fn arguments(&mut self, number: usize) -> Option<Vec<Argument>> {
        let function = &self.program.functions[number];
        let wanted: Vec<(Ty, bool)> =
            function.parameters.iter().map(|&(name, by)| (function.names[name].clone(), by)).collect();
        let mut roots: Vec<Root> = Vec::new();
        let mut found = Vec::new();
        for (ty, is_pointer) in wanted {
            if !is_pointer {
                found.push(Argument::Value(self.expr(&ty, 2)));
                continue;
            }
            let place = (0..4).find_map(|_| self.place(&ty, true).filter(|place| self.can_point(place)))?;
            // What a pointer points to that `let` has named may be any variable.
            if matches!(place.root, Root::Pointer(_)) && !roots.is_empty() || roots.contains(&place.root) {
                return None;
            }
            roots.push(place.root);
            found.push(Argument::Pointer(place));
        }
        Some(found)
    }

    pub(super) fn switch(&mut self, around: Around, depth: usize, found: &mut Vec<Stmt>) {
        let scalar = self.random.of(&[Scalar::U32, Scalar::I32]);
        let selector = self.small(scalar);
        let mut numbers: Vec<u64> = (0..6).collect();
        let mut cases = Vec::new();
        let inside = Around { in_loop: true, ..around };
        for _ in 0..self.random.below(4) {
            let count = 1 + self.random.below(2);
            let own = (0..count).map(|_| numbers.swap_remove(self.random.below(numbers.len()))).collect();
            cases.push((own, false, Vec::new()));
        }
        let at = self.random.below(cases.len() + 1);
        if at < cases.len() && self.random.chance(30) {
            cases[at].1 = true;
        } else {
            cases.insert(at, (Vec::new(), true, Vec::new()));
        }
        for case in &mut cases {
            case.2 = self.block(inside, depth);
            if self.random.chance(15) && !around.in_continuing && !ends(&case.2) {
                case.2.push(Stmt::Break);
            }
        }
        found.push(Stmt::Switch(selector, cases));
    }

    /// Returns an integer that is small.
    pub(super) fn small(&mut self, scalar: Scalar) -> Expr {
        let ty = Ty::Scalar(scalar);
        let x = self.runtime(&ty, 2);
        let mask = Expr { ty: ty.clone(), node: Node::Literal(self.random.of(&[1, 3, 7])) };
        Expr { ty, node: Node::Binary("&", Box::new([x, mask])) }
    }

    /// Writes a loop over a counter, of which mostly all is known.
    pub(super) fn counted(&mut self, depth: usize, found: &mut Vec<Stmt>) {
        let before = self.names.len();
        let scalar = self.random.of(&[Scalar::U32, Scalar::I32]);
        let ty = Ty::Scalar(scalar);
        let literal = |bits: u64| Expr { ty: ty.clone(), node: Node::Literal(bits) };
        let first = match self.random.below(10) {
            0 => self.small(scalar),
            1 => literal(self.random.bits(scalar)),
            2 | 3 => literal(self.random.below(4) as u64),
            _ => literal(0),
        };
        let end = match self.random.below(10) {
            0 | 1 => self.small(scalar),
            2 => {
                let own = self.names.iter().filter(|name| name.ty == ty && name.kind != Kind::Pointer);
                let own: Vec<Name> = own.cloned().collect();
                if own.is_empty() {
                    literal(3)
                } else {
                    let name = self.random.of(&own);
                    let node = match name.kind {
                        Kind::Value => Node::Named(name.number),
                        _ => Node::Load(Place { root: Root::Local(name.number), path: Vec::new() }),
                    };
                    Expr { ty: ty.clone(), node }
                }
            }
            _ => literal(self.random.below(7) as u64),
        };
        let bound = match end.node {
            Node::Literal(bits) => Some(bits as usize),
            _ => None,
        };
        let counter = self.name(Kind::Variable, ty.clone());
        let own = || Place { root: Root::Local(counter), path: Vec::new() };
        let load = Expr { ty: ty.clone(), node: Node::Load(own()) };
        let (op, grows) =
            self.random.of(&[("<", true), ("<", true), ("<", true), ("!=", true), (">", false)]);
        let is_fixed = self.random.chance(85);
        let last = self.names.len() - 1;
        self.names[last].is_fixed = is_fixed;
        if is_fixed && op == "<" && matches!(first.node, Node::Literal(0..8)) {
            self.names[last].below = bound;
        }
        let condition = Expr { ty: BOOL, node: Node::Binary(op, Box::new([load.clone(), end])) };
        let by = literal(self.random.of(&[1, 1, 1, 2, 3]));
        let op = if grows { "+" } else { "-" };
        let next = if self.random.chance(50) {
            Stmt::Compound(own(), op, by)
        } else {
            Stmt::Store(own(), Expr { ty: ty.clone(), node: Node::Binary(op, Box::new([load, by])) })
        };
        let body = self.block(Around { in_loop: true, continues: true, in_continuing: false }, depth);
        self.names.truncate(before);
        let first = Stmt::Var(counter, Some(first));
        found.push(Stmt::For(Box::new(first), condition, Some(Box::new(next)), body));
    }

    pub(super) fn other_loop(&mut self, depth: usize, found: &mut Vec<Stmt>) {
        let inside = Around { in_loop: true, continues: true, in_continuing: false };
        // Most loops count their turns.
        let mut head = Vec::new();
        if self.random.chance(75) {
            let zero = Expr { ty: U32, node: Node::Literal(0) };
            let counter = self.name(Kind::Variable, U32);
            if let Some(last) = self.names.last_mut() {
                last.is_fixed = true;
            }
            found.push(Stmt::Var(counter, Some(zero)));
            let own = || Place { root: Root::Local(counter), path: Vec::new() };
            let number = |bits: usize| Expr { ty: U32, node: Node::Literal(bits as u64) };
            let sides = [Expr { ty: U32, node: Node::Load(own()) }, number(self.random.below(5))];
            let condition = Expr { ty: BOOL, node: Node::Binary(">", Box::new(sides)) };
            head.push(Stmt::If(condition, vec![Stmt::Break], Vec::new()));
            head.push(Stmt::Compound(own(), "+", number(1)));
        }
        if self.random.chance(30) {
            let condition = self.runtime(&BOOL, 2);
            head.extend(self.block(inside, depth));
            found.push(Stmt::While(condition, head));
            return;
        }
        let mut body = head;
        body.extend(self.block(inside, depth));
        let continuing = if self.random.chance(60) {
            let own = Around { in_loop: false, continues: false, in_continuing: true };
            self.continuing += 1;
            let continuing = self.block(own, depth);
            self.continuing -= 1;
            continuing
        } else {
            Vec::new()
        };
        let break_if = self.random.chance(60).then(|| self.runtime(&BOOL, 2));
        if break_if.is_none() && !ends(&body) {
            let condition = self.runtime(&BOOL, 2);
            body.insert(
                self.random.below(body.len() + 1),
                Stmt::If(condition, vec![Stmt::Break], Vec::new()),
            );
        }
        found.push(Stmt::Loop(body, continuing, break_if));
    }
}

/// Returns whether nothing may follow these statements.
fn ends(body: &[Stmt]) -> bool {
    matches!(body.last(), Some(Stmt::Break | Stmt::Continue | Stmt::Return(_)))
}
