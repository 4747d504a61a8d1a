use super::{check, check_sums};

const ELEMENTARY: &str = concat!(
    include_str!("../../../../shaders/snippets/elementary.wgsl"),
    include_str!("../../../../shaders/snippets/quotient.wgsl"),
    include_str!("../../../../shaders/snippets/root.wgsl")
);

/// Returns a kernel with f32 `a`, `b`, `c`, vec4 `v`, `w` and u32 `n`.
fn kernel(functions: &str, body: &str) -> String {
    format!(
        "@group(0) @binding(0) var<storage, read_write> data: array<f32>;
         @group(0) @binding(1) var<storage, read_write> rows: array<vec4<f32>>;
         var<workgroup> tile: array<f32, 64>;
         var<private> own: f32;
         {functions}
         @compute @workgroup_size(64)
         fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
             let a = data[0]; let b = data[1]; let c = data[2]; let n = u32(a); let v = rows[0]; let w = rows[1];
             {body}
         }}"
    )
}

#[track_caller]
fn catches(functions: &str, body: &str) -> Vec<String> {
    let found = check(&kernel(functions, body)).expect_err(body);
    assert!(found.iter().all(|message| message.ends_with("use fma()")), "{body}: {found:?}");
    found
}

#[track_caller]
fn accepts(functions: &str, body: &str) {
    if let Err(found) = check(&kernel(functions, body)) {
        panic!("{body}: {found:?}");
    }
}

#[test]
fn a_finding_names_function_lines_and_text() {
    let found = catches("", "let p = a * b;\n data[0] = c + p;");
    assert_eq!(found, ["main: `c + p` (line 10) adds the product `a * b` (line 9); use fma()"]);
    assert_eq!(catches("", "data[0] = a * b + c; data[1] = c - a * b;").len(), 2);
    assert!(check("fn broken( {").is_err() && check("fn f() -> f32 { return 1u; }").is_err());
}

#[test]
fn products_are_found_in_values_and_variables() {
    for body in [
        "data[0] = a * b + c;",
        "data[0] = a - b * c;",
        "let p = a * b; let q = p; data[0] = q + c;",
        "var p = 0.0; p = a * b; data[0] = c - p;",
        "var acc = 0.0; acc += a * b; data[0] = acc;",
        "var acc = 0.0; for (var i = 0u; i < n; i++) { acc = acc + b; acc = acc * c; } data[0] = acc;",
        "var p = 0.0; loop { data[0] = p + c; if n > 3u { break; } p = a * b; }",
        "var p = c; if n > 1u { p = a * b; } data[0] = p + a;",
        "var p = c; switch n { case 1u: { p = a * b; } default: {} } data[0] = p + a;",
        "data[0] = select(a, a * b, n > 1u) + c;",
        "data[0] = -(a * b) + c;",
        "data[0] = max(abs(a * b), 0.0) - c;",
        "data[0] = clamp(a, b, b * c) - c;",
        "rows[0] = v * a + w;",
        "rows[0] = v - w * w;",
        "data[0] = (v * w).x + c;",
        "data[0] = (v * w).zyx.y + c;",
        "rows[0] = vec4(a * b) + v;",
        "rows[0] = vec4(a, b, a * b, c) + v;",
        "var s = array<f32, 4>(); s[n] = a * b; data[0] = s[1] + c;",
        "var s = v; s.x = a * b; data[0] = s.y + c;",
        "let s = array<f32, 2>(a, a * b); data[0] = s[1] + c;",
        "own = a * b; data[0] = own + c;",
        "data[0] = f32(a * b) + c;",
        "data[0] = radians(a) + c;",
        "data[0] = fract(a * b);",
    ] {
        catches("", body);
    }
}

#[test]
fn products_are_found_across_functions() {
    let product = "fn times(x: f32, y: f32) -> f32 { let p = x * y; return p; }";
    catches(product, "data[0] = times(a, b) + c;");
    let sum =
        "fn plus(x: f32, y: f32) -> f32 { return x + y; } fn deep(x: f32) -> f32 { return plus(1.0, x); }";
    let found = catches(sum, "data[0] = deep(a * b);");
    assert!(found[0].starts_with("plus: `x + y`"), "{found:?}");
    accepts(sum, "data[0] = deep(a) * b;");
    catches("fn same(x: f32) -> f32 { return x; }", "data[0] = same(a * b) + c;");
    catches(
        "fn put(p: ptr<function, f32>, x: f32) { *p = x * x; }",
        "var p = 0.0; put(&p, a); data[0] = p + c;",
    );
    catches("fn add(p: ptr<function, f32>) { *p += 1.0; }", "var p = a * b; add(&p); data[0] = p;");
    let pair = "struct Pair { x: f32, y: f32 } fn pair(x: f32) -> Pair { return Pair(x * x, x); }";
    catches(pair, "data[0] = pair(a).x + c;");
    catches("fn keep(x: f32) { own = x * x; }", "keep(a); data[0] = own + c;");
}

#[test]
fn built_ins_that_add_products_are_found() {
    for body in [
        "data[0] = dot(v, w);",
        "data[0] = mix(a, b, c);",
        "data[0] = length(v);",
        "data[0] = a % b;",
        "rows[0] = mat4x4<f32>(v, w, v, w) * v;",
    ] {
        let found = catches("", body);
        assert!(found[0].contains("products of its own"), "{found:?}");
    }
}

#[test]
fn what_rounds_on_its_own_is_accepted() {
    for body in [
        "data[0] = fma(a, b, c) + c;",
        "data[0] = fma(a, b, c * a) - fma(a * b, c, a);",
        "var acc = 0.0; for (var i = 0u; i < n; i++) { acc = fma(a, b, acc); } data[0] = acc + c;",
        "data[0] = a * b; data[1] = data[0] + c;",
        "tile[n] = a * b; workgroupBarrier(); data[0] = tile[0] + c;",
        "data[n * 4u + 1u] = a; let row = i32(n) * 3 - 1; data[row] = b;",
        "data[0] = bitcast<f32>(bitcast<u32>(a * b)) + c;",
        "data[0] = (a * b) / c + sqrt(a * b);",
        "data[0] = (a + b) * (a - b);",
        "data[0] = f32(i32(a * b)) + floor(a * b) + f32(a * b > c);",
        "data[0] = select(a, b, a * b > c) + c;",
        "rows[0] = v + w; rows[1] = v * w;",
        "rows[0] = fma(v, w, vec4(a)) + v;",
        "var s = array<f32, 4>(); s[n] = fma(a, b, c); data[0] = s[1] + c;",
        "data[0] = 2.0 * 3.0 + c;",
        "data[0] = f32(dot(vec2(n, n), vec2(n, 1u))) + c;",
    ] {
        accepts("", body);
    }
}

#[test]
fn the_elementary_functions_pass_and_take_products() {
    let calls = "data[0] = exp_(a * b) + log_(a * b) - tanh_(a * b) + erf_(a * b) + sigmoid(a * b)
        - quotient(a * b, b * c) + root(a * b);";
    accepts(ELEMENTARY, calls);
    let sabotaged = ELEMENTARY.replace("fma(r * r, q, r)", "(r * r * q + r)");
    assert_ne!(sabotaged, ELEMENTARY);
    let found = catches(&sabotaged, calls);
    assert!(found.len() == 1 && found[0].starts_with("exp_: "), "{found:?}");
}

#[test]
fn sums_are_found_until_they_are_rebuilt_from_their_bits() {
    let kept = "fn kept(x: f32, zero: u32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero); }";
    let add = "fn add(to: ptr<function, f32>, x: f32) { *to += x; }";
    for body in [
        "data[0] = a + b - c;",
        "let s = a + b; data[0] = c + s;",
        "var s = 0.0; for (var i = 0u; i < n; i++) { s += data[i]; } data[0] = s;",
        "data[0] = c - max(-(a - b), 0.0);",
        "var s = 0.0; add(&s, a); add(&s, b); data[0] = s;",
        "own = a + b; data[0] = own + c;",
    ] {
        let found = check_sums(&kernel(add, body)).expect_err(body);
        assert!(
            found.iter().all(|message| message.ends_with("rebuild it from its bits before")),
            "{found:?}"
        );
    }
    for body in [
        "data[0] = a + b;",
        "data[0] = kept(a + b, n) - c;",
        "var s = 0.0; for (var i = 0u; i < n; i++) { s = kept(s, n) + data[i]; } data[0] = s;",
        "data[0] = fma(a, b, c) + a;",
        "data[n + 1u + n] = a + b;",
        "tile[n] = a + b; data[0] = tile[n] + c;",
    ] {
        check_sums(&kernel(kept, body)).unwrap_or_else(|found| panic!("{body}: {found:?}"));
    }
}
