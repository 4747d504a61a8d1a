//! Makes a kernel that fails smaller.

use super::program::*;

/// Returns a smaller kernel that fails as well.
pub fn shrink(program: Program, fails: &mut dyn FnMut(&Program) -> bool) -> Program {
    let mut best = program;
    loop {
        let mut is_smaller = false;
        let mut at = 0;
        loop {
            let mut candidate = best.clone();
            let mut edit = Edit { left: at, is_done: false };
            edit.program(&mut candidate);
            if !edit.is_done {
                break;
            }
            if fails(&candidate) {
                (best, is_smaller) = (candidate, true);
            } else {
                at += 1;
            }
        }
        if !is_smaller {
            return best;
        }
    }
}

/// The change with a number.
struct Edit {
    left: usize,
    is_done: bool,
}

impl Edit {
    /// Returns whether this change is the one.
    fn is_it(&mut self) -> bool {
        if self.is_done {
            return false;
        }
        self.is_done = self.left == 0;
        self.left = self.left.wrapping_sub(1);
        self.is_done
    }

    fn program(&mut self, of: &mut Program) {
        if !of.phases.is_empty() && self.is_it() {
            of.phases.pop();
            return;
        }
        if of.lanes > 1 && self.is_it() {
            of.lanes = 1;
            return;
        }
        let bodies = of.functions.iter_mut().map(|function| &mut function.body);
        let bodies = bodies.chain([&mut of.main.body]).chain(&mut of.phases);
        for body in bodies {
            self.body(body);
            if self.is_done {
                return;
            }
        }
    }

    fn body(&mut self, of: &mut Vec<Stmt>) {
        let mut at = 0;
        while at < of.len() && !self.is_done {
            if self.is_it() {
                of.remove(at);
                return;
            }
            let inner = match &mut of[at] {
                Stmt::If(_, yes, no) => vec![yes, no],
                Stmt::Switch(_, cases) => cases.iter_mut().map(|case| &mut case.2).collect(),
                Stmt::For(_, _, _, body) | Stmt::While(_, body) | Stmt::Block(body) => vec![body],
                Stmt::Loop(body, continuing, _) => vec![body, continuing],
                _ => Vec::new(),
            };
            for body in inner {
                if !body.is_empty() && self.is_it() {
                    let body = std::mem::take(body);
                    of.splice(at..=at, body);
                    return;
                }
            }
            self.stmt(&mut of[at]);
            at += 1;
        }
    }

    fn stmt(&mut self, of: &mut Stmt) {
        match of {
            Stmt::Let(_, value) | Stmt::Var(_, Some(value)) | Stmt::Return(Some(value)) => self.expr(value),
            Stmt::LetPointer(_, place) => self.place(place),
            Stmt::Store(place, value) | Stmt::Compound(place, _, value) => {
                self.place(place);
                self.expr(value);
            }
            Stmt::If(condition, yes, no) => {
                self.expr(condition);
                self.body(yes);
                self.body(no);
            }
            Stmt::Switch(selector, cases) => {
                if let Some(at) = cases.iter().position(|case| !case.1)
                    && self.is_it()
                {
                    cases.remove(at);
                    return;
                }
                self.expr(selector);
                cases.iter_mut().for_each(|case| self.body(&mut case.2));
            }
            Stmt::For(first, condition, next, body) => {
                self.stmt(first);
                self.expr(condition);
                if let Some(next) = next {
                    self.stmt(next);
                }
                self.body(body);
            }
            Stmt::While(condition, body) => {
                self.expr(condition);
                self.body(body);
            }
            Stmt::Loop(body, continuing, break_if) => {
                self.body(body);
                self.body(continuing);
                if break_if.is_some() && self.is_it() {
                    *break_if = None;
                }
                if let Some(condition) = break_if {
                    self.expr(condition);
                }
            }
            Stmt::Block(body) => self.body(body),
            Stmt::Call(_, all) => all.iter_mut().for_each(|argument| self.argument(argument)),
            Stmt::Var(_, None) | Stmt::Break | Stmt::Continue | Stmt::Return(None) => {}
        }
    }

    fn argument(&mut self, of: &mut Argument) {
        match of {
            Argument::Value(value) => self.expr(value),
            Argument::Pointer(place) => self.place(place),
        }
    }

    fn place(&mut self, of: &mut Place) {
        for step in &mut of.path {
            if let Step::At(index) = step {
                self.expr(index);
            }
        }
    }

    fn expr(&mut self, of: &mut Expr) {
        if self.is_done {
            return;
        }
        let is_small = matches!(of.node, Node::Literal(_) | Node::Zero | Node::Named(_));
        if !is_small && self.is_it() {
            of.node = if matches!(of.ty, Ty::Scalar(_)) { Node::Literal(0) } else { Node::Zero };
            return;
        }
        let mut children: Vec<&mut Expr> = match &mut of.node {
            Node::Unary(_, x) | Node::Splat(x) | Node::Swizzle(x, _) | Node::Member(x, _) => vec![x],
            Node::Convert(x) | Node::Bits(x) => vec![x],
            Node::Binary(_, sides) | Node::Index(sides) => sides.iter_mut().collect(),
            Node::Builtin(_, all) | Node::Compose(all) => all.iter_mut().collect(),
            Node::Load(place) => return self.place(place),
            Node::Call(_, all) => return all.iter_mut().for_each(|argument| self.argument(argument)),
            Node::Literal(_) | Node::Zero | Node::Named(_) => return,
        };
        for child in &mut children {
            if child.ty == of.ty && self.is_it() {
                let found = (**child).clone();
                *of = found;
                return;
            }
        }
        for child in children {
            self.expr(child);
        }
    }
}
