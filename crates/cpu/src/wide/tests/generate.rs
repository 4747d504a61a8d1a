//! Random kernels of the kind that wide kernels are: no loops, many operations, and an elementary function.

mod expressions;

/// The invocations of a launch, at most.
pub const MOST: u32 = 640;

/// The words of each buffer.
pub const WORDS: usize = 8_192;

/// Numbers that follow from a seed (SplitMix64).
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

/// A kernel as text, and the launch that it is for.
pub struct Kernel {
    pub statements: Vec<String>,
    pub lanes: u32,
    pub groups: [u32; 3],
    /// How many invocations do not end early.
    pub n: u32,
}

impl Kernel {
    pub fn wgsl(&self) -> String {
        format!(
            "{}@compute @workgroup_size({}) {MAIN}{} }}",
            HEAD,
            self.lanes,
            self.statements.join("\n    ")
        )
    }
}

const HEAD: &str = "struct Params { n: u32, width: u32, five: u32, zero: u32, seven: u32, height: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> b0: array<f32>;
@group(0) @binding(2) var<storage, read> b1: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> b2: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> b3: array<f32>;
@group(0) @binding(5) var<storage, read_write> b4: array<atomic<u32>>;
@group(0) @binding(6) var<storage, read> b5: array<u32>;
@group(0) @binding(7) var<storage, read_write> b6: array<u32>;
@group(0) @binding(8) var<storage, read_write> b7: array<vec4<u32>>;
// Which NaN an operation returns is not specified.
fn bits(x: f32) -> u32 { return select(bitcast<u32>(x), 0x7fc00000u, x != x); }
fn put(p: ptr<function, f32>, x: f32) { var t = x; *p = t; }
fn twice(x: f32) -> f32 { var t = x; t = t + t; return t; }
";

const MAIN: &str = "fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x + (id.y + id.z * params.height) * params.width;
    ";

/// The types of expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ty {
    Float,
    Word,
    Signed,
    Truth,
    /// Four floats.
    Floats,
    /// Four words.
    Words,
}

use Ty::{Float, Floats, Signed, Truth, Word, Words};

impl Ty {
    fn name(self) -> &'static str {
        match self {
            Float => "f32",
            Word => "u32",
            Signed => "i32",
            Truth => "bool",
            Floats => "vec4<f32>",
            Words => "vec4<u32>",
        }
    }
}

/// A buffer that a kernel writes, and the places of it that an invocation has to itself.
struct Written {
    buffer: &'static str,
    ty: Ty,
    /// The number of the invocation's part, as texts that mean the same.
    part: &'static [&'static str],
    /// The places of a part.
    places: usize,
}

/// Parts below 3 * MOST, which no two invocations share.
const PARTS: [&[&str]; 9] = [
    &["i"],
    &["i", "(i / 2u * 2u + (i & 1u))"],
    &["(i + params.five)", "(i + 5u)", "(params.five + i)"],
    &["(i + 7u)", "(params.seven + i)"],
    &["(i / 16u * 20u + i % 16u)", "(i / 16u * 20u + (i & 15u))"],
    &["(i / 20u * 24u + i % 20u)"],
    &["(i / 6u * 7u + i % 6u + 3u)"],
    &["(3u * i)", "(i * 2u + i)"],
    &["(i ^ 1u)"],
];

struct Generator {
    random: Random,
    names: Vec<(String, Ty, bool)>,
    written: Vec<Written>,
    statements: Vec<String>,
    /// Which of four lanes is written that are computed alike.
    lane: Option<usize>,
    /// Whether loads are of places that are known numbers alone.
    is_guard: bool,
}

/// Returns the kernel of a seed.
pub fn generate(seed: u64) -> Kernel {
    let mut random = Random(seed);
    let lanes = random.of(&[1, 7, 32, 64, 64, 100, 128, 200]);
    let most = MOST / lanes;
    let rows = random.of(&[1, 1, 1, 2, 3]).min(most);
    let layers = random.of(&[1, 1, 2]).min(most / rows);
    let columns = 1 + random.below((most / rows / layers) as usize) as u32;
    let all = lanes * columns * rows * layers;
    let n = if random.chance(50) { all } else { random.below(all as usize + 1) as u32 };
    let mut written = Vec::new();
    for (buffer, ty) in [("b2", Floats), ("b3", Float), ("b6", Word), ("b7", Words)] {
        let part = random.of(&PARTS);
        let places = if matches!(ty, Float | Word) { random.of(&[1, 1, 2, 4]) } else { 1 };
        written.push(Written { buffer, ty, part, places });
    }
    let (names, statements) = (vec![("i".to_owned(), Word, false)], Vec::new());
    let mut it = Generator { random, names, written, statements, lane: None, is_guard: false };
    it.body();
    Kernel { statements: it.statements, lanes, groups: [columns, rows, layers], n }
}

impl Generator {
    fn body(&mut self) {
        let has_end = self.random.chance(75);
        if has_end {
            self.statements.push("if i >= params.n { return; }".to_owned());
        }
        if self.random.chance(30) {
            // Behind another end, most conditions have no loads.
            self.is_guard = has_end && self.random.chance(90);
            let condition = self.expression(Truth, 2);
            self.is_guard = false;
            self.statements.push(format!("if {condition} {{ return; }}"));
        }
        let is_crowded = self.random.chance(12);
        if is_crowded {
            self.crowd();
        }
        for _ in 0..2 + self.random.below(12) {
            self.statement();
        }
        if is_crowded {
            // All that was named is used once more, so that it has been kept until here.
            for ty in [Float, Floats] {
                let all: Vec<_> =
                    self.names.iter().filter(|name| name.1 == ty).map(|name| &*name.0).collect();
                let sum = all.join(" * ");
                let to = self.own(ty);
                self.statements.push(format!("{to} = {}(1.0) + {sum};", ty.name()));
            }
        }
        let function = self.function();
        let x = self.expression(Float, 2);
        let to = self.own(Float);
        self.statements.push(format!("{to} = flush({function}({x}));"));
        for _ in 0..self.random.below(3) {
            self.statement();
        }
    }

    /// Names more values than there are registers, many of which are loaded.
    fn crowd(&mut self) {
        let ty = self.random.of(&[Float, Floats]);
        for other in [Float, Floats] {
            let count = if other == ty { 8 + self.random.below(35) } else { 1 };
            for _ in 0..count {
                let name = format!("v{}", self.names.len());
                let depth = self.random.below(3);
                let value = self.expression(other, depth);
                self.statements.push(format!("let {name}: {} = {value};", other.name()));
                self.names.push((name, other, false));
            }
        }
    }

    fn statement(&mut self) {
        let depth = 1 + self.random.below(4);
        let statement = match self.random.below(20) {
            0..6 => return self.named(depth),
            6..8 => {
                let names: Vec<_> = self.names.iter().filter(|(.., is_var)| *is_var).cloned().collect();
                if names.is_empty() {
                    return self.named(depth);
                }
                let (name, ty, _) = self.random.of(&names);
                match ty {
                    Floats if self.random.chance(60) => {
                        let part = self.random.of(&["x", "y", "z", "w"]);
                        format!("{name}.{part} = {};", self.expression(Float, depth))
                    }
                    // Kernels with pointers are compiled.
                    Float if self.random.chance(3) => {
                        format!("put(&{name}, {});", self.expression(Float, depth))
                    }
                    _ => format!("{name} = {};", self.expression(ty, depth)),
                }
            }
            8..16 => {
                let ty = self.random.of(&[Float, Float, Word, Floats, Floats, Words]);
                let value = self.expression(ty, depth);
                let to = self.own(ty);
                let times = if self.random.chance(15) { 2 } else { 1 };
                let mut all = vec![format!("{to} = {value};"); times];
                if times == 2 {
                    all.insert(1, format!("{to} = {};", self.expression(ty, 1)));
                }
                all.join(" ")
            }
            16 | 17 => {
                // All that store to a place store the same number.
                let place = self.random.below(5);
                let condition = self.condition(depth);
                let store = match self.random.chance(70) {
                    true => format!("atomicStore(&b4[{place}], {}u);", place + 1),
                    false => format!("b6[{}] = {}u;", 8_100 + place, place + 1),
                };
                format!("if {condition} {{ {store} }}")
            }
            18 => {
                // The condition is the same for all invocations.
                let condition = self.random.of(&["b5[0] == 77u", "b5[1] != 77u", "params.five == 5u"]);
                format!("if {condition} {{ atomicStore(&b4[7], {}u); }}", self.random.below(3))
            }
            _ => format!("b6[8000] = params.five + b5[{}];", self.random.below(4)),
        };
        self.statements.push(statement);
    }

    fn condition(&mut self, depth: usize) -> String {
        match self.random.below(4) {
            0 => {
                let [x, y] = [self.expression(Words, depth), self.expression(Words, depth)];
                format!("any({x} == {y})")
            }
            1 => {
                let x = self.expression(Floats, depth);
                format!("any(exponents({x}) == vec4<u32>(EXPONENT))")
            }
            _ => self.expression(Truth, depth),
        }
    }

    fn named(&mut self, depth: usize) {
        let ty = self.random.of(&[Float, Float, Float, Word, Signed, Truth, Floats, Floats, Words]);
        let value = self.expression(ty, depth);
        let name = format!("v{}", self.names.len());
        let is_var = self.random.chance(40);
        let word = if is_var { "var" } else { "let" };
        self.statements.push(format!("{word} {name}: {} = {value};", ty.name()));
        self.names.push((name, ty, is_var));
    }

    fn function(&mut self) -> &'static str {
        self.random.of(&["exp_", "log_", "tanh_", "erf_", "sigmoid", "exp_"])
    }

    /// Returns a place that the invocation has to itself.
    fn own(&mut self, ty: Ty) -> String {
        let at = self.written.iter().position(|own| own.ty == ty).unwrap();
        let part = self.random.of(self.written[at].part);
        let Written { buffer, places, .. } = self.written[at];
        match places {
            1 => format!("{buffer}[{part}]"),
            _ if self.random.chance(70) => {
                format!("{buffer}[{places}u * {part} + {}u]", self.random.below(places))
            }
            _ => format!("{buffer}[{places}u * {part} + ({} & {}u)]", self.expression(Word, 1), places - 1),
        }
    }

    /// Returns a place in a buffer of so many elements.
    fn place(&mut self, end: u32, depth: usize) -> String {
        if self.is_guard {
            return format!("{}u", self.random.below(end as usize));
        }
        let lane = self.lane.unwrap_or_default();
        match self.random.below(12) {
            0..3 => "i".to_owned(),
            3 => "i + params.five".to_owned(),
            4 => format!("i + {}u", self.random.below(40) + lane),
            5 => format!("i / {}u", 2 + self.varied(20)),
            6 => format!("i % {}u", 1 + self.varied(40)),
            7 => self.random.of(PARTS[4]).to_owned(),
            8 if end > 2_600 => format!("4u * i + {lane}u"),
            8 => format!("2u * i + {}u", lane & 1),
            9 => format!("{}u", self.random.below(end as usize - 4) + lane),
            10 => format!("min({}, {}u)", self.expression(Word, depth), end - 1),
            _ => format!("({}) % {}u", self.expression(Word, depth), self.varied(9) + 1),
        }
    }

    /// Returns a number, which differs between lanes that are otherwise computed alike, but not always.
    fn varied(&mut self, end: usize) -> usize {
        let (number, differs) = (self.random.below(end), self.random.chance(50));
        if differs { (number + self.lane.unwrap_or_default()) % end } else { number }
    }

    fn named_value(&mut self, ty: Ty) -> Option<String> {
        let lane = self.lane.unwrap_or_else(|| self.random.below(4));
        let part = match ty {
            Float => Some(Floats),
            Word => Some(Words),
            _ => None,
        };
        let fits = |(name, own, _): &(String, Ty, bool)| match *own {
            own if own == ty => Some(name.clone()),
            own if Some(own) == part => Some(format!("{name}.{}", ["x", "y", "z", "w"][lane])),
            _ => None,
        };
        let all: Vec<String> = self.names.iter().filter_map(fits).collect();
        (!all.is_empty()).then(|| self.random.of(&all))
    }

    fn leaf(&mut self, ty: Ty, depth: usize) -> String {
        if self.random.chance(45)
            && let Some(name) = self.named_value(ty)
        {
            return name;
        }
        let lane = self.lane.unwrap_or_else(|| self.random.below(4));
        match ty {
            Float => match self.random.below(7) {
                0 | 1 => format!("b0[{}]", self.place(8_192, depth)),
                2 | 3 => format!("b1[{}].{}", self.place(2_048, depth), ["x", "y", "z", "w"][lane]),
                4 if self.is_guard => "b0[3]".to_owned(),
                4 => format!("b1[{}][{} & 3u]", self.place(2_048, depth), self.expression(Word, 0)),
                5 if !self.is_guard => self.own(Float),
                _ => {
                    let all = ["0.0", "1.0", "-1.5", "3e-39", "1e30", "0.3", "-0.0", "2.0", "100.0"];
                    all[self.varied(all.len())].to_owned()
                }
            },
            Word => match self.random.below(8) {
                0 | 1 => "i".to_owned(),
                2 => "params.five".to_owned(),
                3 => format!("b5[{}]", self.place(8_192, depth)),
                4 if !self.is_guard => self.own(Word),
                5 => self.random.of(&["id.x", "id.y", "id.z", "params.seven"]).to_owned(),
                _ => {
                    let all = [0, 1, 2, 3, 7, 10, 31, 255, 0x7fff_ffff, 0x8000_0000, u32::MAX, 77];
                    format!("{}u", all[self.varied(all.len())])
                }
            },
            Signed => {
                let all = ["0", "1", "-1", "7", "-9", "2147483647"];
                all[self.varied(all.len())].to_owned()
            }
            Truth => self.random.of(&["true", "false"]).to_owned(),
            Floats => match self.random.below(4) {
                0 if !self.is_guard => self.own(Floats),
                1 => format!("vec4<f32>({})", self.leaf(Float, depth)),
                _ => format!("b1[{}]", self.place(2_048, depth)),
            },
            Words => match self.random.below(3) {
                0 if !self.is_guard => self.own(Words),
                1 => format!("vec4<u32>({})", self.leaf(Word, depth)),
                _ => format!("exponents(b1[{}])", self.place(2_048, depth)),
            },
        }
    }

    /// Returns four values, next to one another: often computed alike.
    fn four(&mut self, ty: Ty, depth: usize) -> String {
        let is_outer = self.lane.is_none();
        let mut all = Vec::new();
        if is_outer && self.random.chance(75) {
            let before = self.random.clone();
            for lane in 0..4 {
                self.random = before.clone();
                self.lane = Some(lane);
                all.push(self.expression(ty, depth));
            }
            self.lane = None;
        } else {
            all.extend((0..4).map(|_| self.expression(ty, depth.min(2))));
        }
        let name = if ty == Float { Floats.name() } else { Words.name() };
        format!("{name}({})", all.join(", "))
    }
}
