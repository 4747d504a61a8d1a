//! Kernels as WGSL.

use super::program::*;

fn ty(of: &Ty) -> String {
    let scalar = |scalar: &Scalar| match scalar {
        Scalar::Bool => "bool",
        Scalar::I32 => "i32",
        Scalar::U32 => "u32",
        Scalar::F32 => "f32",
        Scalar::I64 => "i64",
        Scalar::U64 => "u64",
    };
    match of {
        Ty::Scalar(of) => scalar(of).to_owned(),
        Ty::Vector(width, of) => format!("vec{width}<{}>", scalar(of)),
        Ty::Matrix(columns, rows) => format!("mat{columns}x{rows}<f32>"),
        Ty::Array(of, count) => format!("array<{}, {count}>", ty(of)),
        Ty::Struct(number) => format!("S{number}"),
    }
}

fn literal(scalar: Scalar, bits: u64) -> String {
    match scalar {
        Scalar::Bool => (bits != 0).to_string(),
        Scalar::I32 => format!("i32({})", bits as u32 as i32),
        Scalar::U32 => format!("{}u", bits as u32),
        Scalar::F32 => format!("f32({:e})", f32::from_bits(bits as u32)),
        Scalar::I64 => format!("({}li)", (bits as i64).max(-i64::MAX)),
        Scalar::U64 => format!("{bits}lu"),
    }
}

fn place(of: &Place) -> String {
    let mut text = match of.root {
        Root::Local(number) => format!("v{number}"),
        Root::Pointer(number) => format!("(*v{number})"),
        Root::Private(number) => format!("p{number}"),
        Root::Buffer(number) => format!("b{number}"),
        Root::Shared => "shared_words".to_owned(),
    };
    for step in &of.path {
        match step {
            Step::Member(number) => text += &format!(".m{number}"),
            Step::At(index) => text += &format!("[{}]", expr(index)),
        }
    }
    text
}

fn list(all: &[Expr]) -> String {
    all.iter().map(expr).collect::<Vec<_>>().join(", ")
}

fn arguments(all: &[Argument]) -> String {
    let one = |argument: &Argument| match argument {
        Argument::Value(value) => expr(value),
        Argument::Pointer(to) => format!("&{}", place(to)),
    };
    all.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn expr(of: &Expr) -> String {
    match &of.node {
        Node::Literal(bits) => literal(of.ty.scalar().unwrap_or(Scalar::U32), *bits),
        // naga 30 miscounts the components of `vec4(vec3(), 1)` with constants.
        Node::Zero => match of.ty {
            Ty::Vector(_, scalar) => format!("{}({})", ty(&of.ty), literal(scalar, 0)),
            _ => format!("{}()", ty(&of.ty)),
        },
        Node::Load(from) => place(from),
        Node::Named(number) => format!("v{number}"),
        Node::Unary(op, x) => format!("{op}({})", expr(x)),
        Node::Binary(op, sides) => format!("({} {op} {})", expr(&sides[0]), expr(&sides[1])),
        Node::Builtin(name, all) => format!("{name}({})", list(all)),
        Node::Compose(parts) => format!("{}({})", ty(&of.ty), list(parts)),
        Node::Splat(x) | Node::Convert(x) => format!("{}({})", ty(&of.ty), expr(x)),
        Node::Swizzle(x, lanes) => {
            format!("{}.{}", expr(x), lanes.iter().map(|&lane| b"xyzw"[lane] as char).collect::<String>())
        }
        Node::Index(sides) => format!("{}[{}]", expr(&sides[0]), expr(&sides[1])),
        Node::Member(x, number) => format!("{}.m{number}", expr(x)),
        Node::Bits(x) => format!("bits_of({})", expr(x)),
        Node::Call(number, all) => format!("f{number}({})", arguments(all)),
    }
}

fn header(of: &Stmt) -> String {
    let mut text = String::new();
    stmt(&mut text, of, 0);
    text.trim().trim_end_matches(';').to_owned()
}

fn block(text: &mut String, of: &[Stmt], depth: usize) {
    for each in of {
        stmt(text, each, depth);
    }
}

fn stmt(text: &mut String, of: &Stmt, depth: usize) {
    let tab = "  ".repeat(depth);
    let deeper = depth + 1;
    let mut line = |line: String| *text += &format!("{tab}{line}\n");
    match of {
        Stmt::Let(name, value) => line(format!("let v{name} = {};", expr(value))),
        Stmt::Var(name, Some(value)) => line(format!("var v{name} = {};", expr(value))),
        Stmt::Var(name, None) => line(format!("var v{name}: T{name};")),
        Stmt::LetPointer(name, to) => line(format!("let v{name} = &{};", place(to))),
        Stmt::Store(to, value) => line(format!("{} = {};", place(to), expr(value))),
        Stmt::Compound(to, op, value) => line(format!("{} {op}= {};", place(to), expr(value))),
        Stmt::If(condition, yes, no) => {
            line(format!("if {} {{", expr(condition)));
            block(text, yes, deeper);
            if !no.is_empty() {
                *text += &format!("{tab}}} else {{\n");
                block(text, no, deeper);
            }
            *text += &format!("{tab}}}\n");
        }
        Stmt::Switch(selector, cases) => {
            line(format!("switch {} {{", expr(selector)));
            let scalar = selector.ty.scalar().unwrap_or(Scalar::U32);
            for (numbers, is_default, body) in cases {
                let mut all: Vec<String> = numbers.iter().map(|&bits| literal(scalar, bits)).collect();
                all.extend(is_default.then(|| "default".to_owned()));
                *text += &format!("{tab}case {}: {{\n", all.join(", "));
                block(text, body, deeper);
                *text += &format!("{tab}}}\n");
            }
            *text += &format!("{tab}}}\n");
        }
        Stmt::For(first, condition, next, body) => {
            let next = next.as_ref().map(|next| header(next)).unwrap_or_default();
            line(format!("for ({}; {}; {next}) {{", header(first), expr(condition)));
            block(text, body, deeper);
            *text += &format!("{tab}}}\n");
        }
        Stmt::While(condition, body) => {
            line(format!("while {} {{", expr(condition)));
            block(text, body, deeper);
            *text += &format!("{tab}}}\n");
        }
        Stmt::Loop(body, continuing, break_if) => {
            line("loop {".to_owned());
            block(text, body, deeper);
            if !continuing.is_empty() || break_if.is_some() {
                *text += &format!("{tab}  continuing {{\n");
                block(text, continuing, deeper + 1);
                if let Some(condition) = break_if {
                    *text += &format!("{tab}    break if {};\n", expr(condition));
                }
                *text += &format!("{tab}  }}\n");
            }
            *text += &format!("{tab}}}\n");
        }
        Stmt::Block(body) => {
            line("{".to_owned());
            block(text, body, deeper);
            *text += &format!("{tab}}}\n");
        }
        Stmt::Break => line("break;".to_owned()),
        Stmt::Continue => line("continue;".to_owned()),
        Stmt::Return(None) => line("return;".to_owned()),
        Stmt::Return(Some(value)) => line(format!("return {};", expr(value))),
        Stmt::Call(number, all) => line(format!("f{number}({});", arguments(all))),
    }
}

/// Writes the types of variables without a first value.
fn with_types(text: String, names: &[Ty]) -> String {
    names
        .iter()
        .enumerate()
        .rev()
        .fold(text, |text, (number, of)| text.replace(&format!(": T{number};"), &format!(": {};", ty(of))))
}

/// Returns the text of a kernel.
pub fn wgsl(program: &Program) -> String {
    let mut text =
        String::from("fn bits_of(x: f32) -> u32 { return select(bitcast<u32>(x), 0x7fc00000u, x != x); }\n");
    for (number, members) in program.structs.iter().enumerate() {
        let members: Vec<_> =
            members.iter().enumerate().map(|(at, of)| format!("m{at}: {}", ty(of))).collect();
        text += &format!("struct S{number} {{ {} }}\n", members.join(", "));
    }
    for (number, (of, first)) in program.private.iter().enumerate() {
        let first = first.as_ref().map(|first| format!(" = {}", expr(first))).unwrap_or_default();
        text += &format!("var<private> p{number}: {}{first};\n", ty(of));
    }
    if let Some(shared) = &program.shared {
        text += &format!("var<workgroup> shared_words: array<{}, {}>;\n", ty(shared), program.lanes);
    }
    for (number, of) in program.buffers.iter().enumerate() {
        let access = match number {
            1 if program.uniform => "uniform",
            1 => "storage, read",
            _ => "storage, read_write",
        };
        let of = match of {
            Ty::Array(of, _) if number != 1 => format!("array<{}>", ty(of)),
            of => ty(of),
        };
        text += &format!("@group(0) @binding({number}) var<{access}> b{number}: {of};\n");
    }
    for (number, function) in program.functions.iter().enumerate() {
        let parameter = |&(name, is_pointer): &(usize, bool)| {
            let of = ty(&function.names[name]);
            if is_pointer { format!("v{name}: ptr<function, {of}>") } else { format!("v{name}: {of}") }
        };
        let parameters: Vec<_> = function.parameters.iter().map(parameter).collect();
        let result = function.result.as_ref().map(|of| format!("-> {} ", ty(of))).unwrap_or_default();
        let mut body = String::new();
        block(&mut body, &function.body, 1);
        let body = with_types(body, &function.names);
        text += &format!("fn f{number}({}) {result}{{\n{body}}}\n", parameters.join(", "));
    }
    let mut body = String::new();
    block(&mut body, &program.main.body, 1);
    for phase in &program.phases {
        body += "  workgroupBarrier();\n";
        block(&mut body, phase, 1);
    }
    let body = with_types(body, &program.main.names);
    let lanes = program.lanes;
    text += &format!(
        "@compute @workgroup_size({lanes}) fn main(@builtin(global_invocation_id) id: vec3<u32>, \
         @builtin(local_invocation_index) v1: u32) {{\n  let v0 = id.x;\n{body}}}\n"
    );
    text
}
