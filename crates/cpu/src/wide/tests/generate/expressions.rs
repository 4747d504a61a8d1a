//! Random expressions, which are operations that wide kernels have.

use super::Generator;
use super::Ty::{self, Float, Floats, Signed, Truth, Word, Words};

impl Generator {
    pub fn expression(&mut self, ty: Ty, depth: usize) -> String {
        if depth == 0 || self.random.chance(12) {
            return self.leaf(ty, depth.saturating_sub(1));
        }
        match ty {
            Float => self.float(depth - 1),
            Word => self.word(depth - 1),
            Signed => self.signed(depth - 1),
            Truth => self.truth(depth - 1),
            Floats => self.floats(depth - 1),
            Words => self.words(depth - 1),
        }
    }

    fn two(&mut self, ty: Ty, depth: usize) -> [String; 2] {
        [self.expression(ty, depth), self.expression(ty, depth)]
    }

    fn float(&mut self, depth: usize) -> String {
        match self.random.below(16) {
            0..4 => {
                let ([x, y], op) = (self.two(Float, depth), self.random.of(&["+", "-", "*", "/"]));
                format!("({x} {op} {y})")
            }
            4 | 5 => {
                let [x, y] = self.two(Float, depth);
                format!("fma({x}, {y}, {})", self.expression(Float, depth))
            }
            6 => {
                let [x, y] = self.two(Float, depth);
                format!("quotient({x}, {y})")
            }
            7 => format!("root({})", self.expression(Float, depth)),
            8 | 9 => format!("flush({})", self.expression(Float, depth)),
            10 => {
                let function = self.function();
                format!("{function}({})", self.expression(Float, depth))
            }
            11 | 12 => {
                let [x, y] = self.two(Float, depth);
                format!("select({x}, {y}, {})", self.expression(Truth, depth))
            }
            13 => {
                let call = self.random.of(&["abs", "-", "twice"]);
                format!("{call}({})", self.expression(Float, depth))
            }
            14 => format!("f32({})", self.expression(Word, depth)),
            _ => match self.random.chance(50) {
                true => format!("f32({})", self.expression(Signed, depth)),
                false => format!("bitcast<f32>({})", self.expression(Word, depth)),
            },
        }
    }

    fn word(&mut self, depth: usize) -> String {
        match self.random.below(12) {
            0..3 => {
                let [x, y] = self.two(Word, depth);
                format!("({x} {} {y})", self.random.of(&["+", "-", "*", "&", "|", "^"]))
            }
            3..6 => {
                let (x, op) = (self.expression(Word, depth), self.random.of(&["/", "%"]));
                let all = [3, 5, 7, 10, 28, 1000, 9, 6, 1, 2, 8, 0x8000_0000_u32, 16, u32::MAX];
                format!("({x} {op} {}u)", all[self.varied(all.len())])
            }
            6 => {
                let (x, op) = (self.expression(Word, depth), self.random.of(&["<<", ">>"]));
                format!("({x} {op} {}u)", self.varied(32))
            }
            7 => {
                let [x, y] = self.two(Word, depth);
                format!("{}({x}, {y})", self.random.of(&["min", "max"]))
            }
            8 => format!("bits({})", self.expression(Float, depth)),
            9 => format!("u32({})", self.expression(Float, depth)),
            10 => {
                let [x, y] = self.two(Word, depth);
                format!("select({x}, {y}, {})", self.expression(Truth, depth))
            }
            _ => match self.random.chance(50) {
                true => format!("bitcast<u32>({})", self.expression(Signed, depth)),
                false => format!("~({})", self.expression(Word, depth)),
            },
        }
    }

    fn signed(&mut self, depth: usize) -> String {
        match self.random.below(8) {
            0 => format!("i32({})", self.expression(Float, depth)),
            1 | 2 => format!("bitcast<i32>({})", self.expression(Word, depth)),
            3 => format!("i32({})", self.expression(Word, depth)),
            4 => format!("({} >> {}u)", self.expression(Signed, depth), self.varied(32)),
            5 => {
                let [x, y] = self.two(Signed, depth);
                format!("{}({x}, {y})", self.random.of(&["min", "max"]))
            }
            6 => format!("-({})", self.expression(Signed, depth)),
            _ => {
                let [x, y] = self.two(Signed, depth);
                format!("({x} {} {y})", self.random.of(&["+", "-", "*", "&", "|", "^"]))
            }
        }
    }

    fn truth(&mut self, depth: usize) -> String {
        if self.random.chance(25) {
            let [x, y] = self.two(Truth, depth);
            return match self.random.below(5) {
                4 => format!("!({x})"),
                op => format!("({x} {} {y})", ["&", "|", "==", "!="][op]),
            };
        }
        let ty = self.random.of(&[Float, Float, Word, Signed]);
        let [x, y] = self.two(ty, depth);
        format!("({x} {} {y})", self.random.of(&["<", "<=", ">", ">=", "==", "!="]))
    }

    fn floats(&mut self, depth: usize) -> String {
        match self.random.below(14) {
            0..5 => self.four(Float, depth),
            5 | 6 => {
                let ([x, y], op) = (self.two(Floats, depth), self.random.of(&["+", "-", "*", "/"]));
                format!("({x} {op} {y})")
            }
            7 => format!("({} * {})", self.expression(Floats, depth), self.expression(Float, depth)),
            8 | 9 => {
                let [x, y] = self.two(Floats, depth);
                format!("fma({x}, {y}, {})", self.expression(Floats, depth))
            }
            10 => {
                let [x, y] = self.two(Floats, depth);
                let condition = match self.random.chance(50) {
                    true => self.expression(Truth, depth),
                    false => {
                        let [a, b] = self.two(Floats, depth);
                        format!("{a} {} {b}", self.random.of(&["<", ">=", "==", "!="]))
                    }
                };
                format!("select({x}, {y}, {condition})")
            }
            11 => {
                let pattern: String = (0..4).map(|_| self.random.of(&['x', 'y', 'z', 'w'])).collect();
                format!("({}).{pattern}", self.expression(Floats, depth))
            }
            12 => format!("{}({})", self.random.of(&["abs", "-"]), self.expression(Floats, depth)),
            // Kernels with matrices are compiled.
            _ if self.random.chance(3) => {
                let [x, y] = self.two(Floats, depth);
                format!("(mat4x4<f32>({x}, {y}, {x}, {y}) * {y})")
            }
            _ => format!("vec4<f32>({})", self.expression(Float, depth)),
        }
    }

    fn words(&mut self, depth: usize) -> String {
        match self.random.below(7) {
            0..3 => self.four(Word, depth),
            3 => format!("~({})", self.expression(Words, depth)),
            4 => {
                let [x, y] = self.two(Words, depth);
                format!("{}({x}, {y})", self.random.of(&["min", "max"]))
            }
            _ => {
                let [x, y] = self.two(Words, depth);
                format!("({x} {} {y})", self.random.of(&["+", "-", "*", "&", "|", "^"]))
            }
        }
    }
}
