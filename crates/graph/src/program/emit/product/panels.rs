//! The functions that `matmul_panels.wgsl` leaves open: how rows of the left operand and columns of the right
//! one are found or copied, where sums go, and how a tile is written.

use std::fmt::Write as _;

use crate::codegen::Addend;

/// Finds eight rows of a left operand where it is stored.
pub(super) const LEFT_STORED: &str = "fn left_steps(own: Part, steps: u32) {}
fn left_rows(own: Part, i: u32, steps: u32) -> Rows {
    var rows: Rows;
    for (var r = 0u; r < 8u; r++) {
        let row = min(i + r, params.m - 1u);
        if TRANSPOSE_A {
            rows.at[r] = own.a + own.start * params.a_step + row;
        } else {
            rows.at[r] = own.a + row * params.a_step + own.start;
        }
    }
    rows.step = select(1u, params.a_step, TRANSPOSE_A);
    return rows;
}
";

/// The memory that eight rows of a left operand are copied to. `left(i)` reads element i of it.
pub(super) const STRIPE: &str = "
// stripe[2 * p + g]: step p of the rows 4 * g to 4 * g + 3.
var<workgroup> stripe: array<vec4<f32>, STRIPE>;
fn left(i: u32) -> f32 { return stripe[i / 4u][i % 4u]; }
";

/// Copies eight rows of a left operand of f16.
pub(super) const LEFT_COPIED: &str = "
fn left_steps(own: Part, steps: u32) {}
fn left_rows(own: Part, i: u32, steps: u32) -> Rows {
    for (var g = 0u; g < 2u; g++) {
        let rows = a_rows(own, i + 4u * g);
        for (var p = 0u; p < steps; p += 4u) {
            let block = transpose(a_block(own, rows, own.start + p));
            for (var d = 0u; d < 4u; d++) { stripe[2u * (p + d) + g] = block[d]; }
        }
    }
    return Rows(array<u32, 8>(0u, 1u, 2u, 3u, 4u, 5u, 6u, 7u), 8u);
}
";

/// Copies eight rows of a left operand that is a view.
pub(super) const LEFT_VIEWED: &str = "
fn left_steps(own: Part, steps: u32) { a_put_steps(own, steps); }
fn left_rows(own: Part, i: u32, steps: u32) -> Rows {
    a_put_lines(own, i);
    unisono_view_stripe(steps, 0u);
    return Rows(array<u32, 8>(0u, 1u, 2u, 3u, 4u, 5u, 6u, 7u), 8u);
}
";

/// The memory to which a part of a right operand is copied.
pub(super) const PANEL: &str = "
// panel[8 * (q * STEPS + p) + h]: step p of the columns 4 * h to 4 * h + 3 of panel q.
var<workgroup> panel: array<vec4<f32>, 8u * STEPS * PANELS>;
fn panel_quad(i: u32) -> vec4<f32> { return panel[i]; }
fn panel_start(own: Part, j: u32, q: u32) -> u32 { return q * STEPS; }
";

/// Reads a right operand that is packed.
pub(super) const RIGHT_PACKED: &str = "
fn panel_quad(i: u32) -> vec4<f32> { return b[i]; }
fn panel_start(own: Part, j: u32, q: u32) -> u32 { return j / 32u * params.k + own.start; }
fn copy_panel(own: Part, j: u32, steps: u32, to: u32) {}
";

/// Copies a right operand that is a view.
pub(super) const RIGHT_VIEWED: &str = "
fn copy_panel(own: Part, j: u32, steps: u32, to: u32) {
    b_put_lines(own, j);
    if to == 0u { b_put_steps(own, steps); }
    unisono_view_panel(steps, to);
}
";

/// Copies steps of 32 columns of a right operand.
pub(super) const PANEL_COPY: &str = "
// Copies steps of 32 columns to the panels' memory from step `to` on. Element `first` of b is the first one;
// steps and columns lie so far apart; columns behind the last one are copies of it.
fn unisono_panel_copy(first: u32, step: u32, column: u32, steps: u32, last: u32, to: u32) {
    for (var p = 0u; p < steps; p++) {
        for (var h = 0u; h < 8u; h++) {
            var quad: vec4<f32>;
            for (var s = 0u; s < 4u; s++) {
                quad[s] = right(first + p * step + min(4u * h + s, last) * column);
            }
            panel[8u * (to + p) + h] = quad;
        }
    }
}
";

/// Copies a right operand that is stored as f32. Columns from n on hold any values.
pub(super) const RIGHT_STORED: &str = "
fn copy_panel(own: Part, j: u32, steps: u32, to: u32) {
    let last = params.n - 1u - j;
    if TRANSPOSE_B {
        unisono_panel_copy(own.b + j * params.b_step + own.start, 1u, params.b_step, steps, last, to);
    } else {
        unisono_panel_copy(own.b + own.start * params.b_step + j, params.b_step, 1u, steps, last, to);
    }
}
";

/// Copies a right operand of f16, in blocks, sixteen columns at a time: eight blocks in one
/// loop would take twice as long to compile. Nobody reads what the columns behind the last one become.
pub(super) const RIGHT_COPIED: &str = "
fn copy_panel(own: Part, j: u32, steps: u32, to: u32) {
    let quads = min(8u, (params.n - j + 3u) / 4u);
    for (var first = 0u; first < quads; first += 4u) {
        var columns: array<BColumns, 4>;
        for (var h = 0u; h < 4u; h++) { columns[h] = b_columns(own, j + 4u * (first + h)); }
        for (var p = 0u; p < steps; p += 4u) {
            for (var h = 0u; h < 4u; h++) {
                let block = b_block(own, own.start + p, columns[h]);
                for (var d = 0u; d < 4u; d++) { panel[8u * (to + p + d) + first + h] = block[d]; }
            }
        }
    }
}
";

/// The tile that sums go to before an epilogue finishes them.
pub(super) const TILE: &str = "
// tile[8 * (q * ROWS + i) + h]: row i of the columns 4 * h to 4 * h + 3 of panel q.
var<workgroup> tile: array<vec4<f32>, 8u * ROWS * PANELS>;
const HAS_TILE: bool = true;
fn goal_of(own: Part, i: u32, j: u32, row: u32) -> Goal { return Goal(32u * row, 32u, 8u, 32u, 32u, 32u, 0u); }
fn put_sums(at: u32, last: u32, sums: vec4<f32>) { tile[at / 4u] = sums; }
";

/// Writes a tile that an epilogue finishes, or that is rounded.
pub(super) const PUT_FINISHED: &str = "
fn put_tile(own: Part, i: u32, j: u32, rows: u32, first: u32) {
    let quads = min(8u, (params.n - j + 3u) / 4u);
    for (var r = 0u; r < rows; r++) {
        for (var h = 0u; h < quads; h++) { put_row(own, i + r, j + 4u * h, tile[8u * (first + r) + h]); }
    }
}
";

/// Has sums go to the result, as they are.
pub(super) const PUT_STORED: &str = "
const HAS_TILE: bool = false;
fn goal_of(own: Part, i: u32, j: u32, row: u32) -> Goal {
    let rows = min(8u, params.m - i);
    let columns = min(32u, params.n - j);
    if ACROSS == 0u { return Goal(own.c + i * params.n + j, params.n, rows, columns, 32u, 32u, 0u); }
    // The columns of one sample lie side by side.
    let width = max(ACROSS, 1u);
    let at = own.c + (i + j / width * params.m) * width + j % width;
    return Goal(at, width, rows, columns, width - j % width, width, (params.m - 1u) * width);
}
fn put_sums(at: u32, last: u32, sums: vec4<f32>) { put_quad(at, last, sums); }
fn put_tile(own: Part, i: u32, j: u32, rows: u32, first: u32) {}
";

/// Writes a tile to which the epilogue adds numbers in memory, row by row.
pub(super) fn put_added(addends: &[Addend]) -> String {
    let (mut declared, mut sum) = (String::new(), String::new());
    let (mut starts, mut apart) = (Vec::new(), Vec::new());
    for (at, addend) in addends.iter().enumerate() {
        let own = match addend {
            Addend::Product => {
                let _ = writeln!(declared, "const ADDS_PRODUCT: u32 = {at}u;");
                "tile[8u * r + (first + e) / 4u]".to_owned()
            }
            Addend::Stored { binding, vector } => {
                let n = starts.len();
                let _ = writeln!(
                    declared,
                    "const ADDS_{n}: u32 = {binding}u;\n\
                     fn added_{n}(row: u32, j: u32) -> u32 {{ return 4u * ({vector}); }}"
                );
                starts.push(format!("added_{n}(row, j / 4u)"));
                apart.push(format!("added_{n}(row + 1u, j / 4u) - added_{n}(row, j / 4u)"));
                format!("b{binding}[(begins[{n}] + r * apart[{n}] + e) / 4u]")
            }
        };
        sum = if at == 0 { own } else { format!("canonical({sum} + {own})") };
    }
    let places = format!("array<u32, {}>", starts.len());
    let (starts, apart) = (starts.join(", "), apart.join(", "));
    format!(
        "{declared}
// Writes rows of the tile from element `first` on, a multiple of four, to c[at]. Rows lie `step` apart there.
// What is added to them `begins` there, and its rows are so far `apart`.
fn unisono_panel_add(
    at: u32, step: u32, rows: u32, first: u32, columns: u32, begins: {places}, apart: {places}
) {{
    for (var r = 0u; r < rows; r++) {{
        for (var e = 0u; e < columns; e += 4u) {{
            put_quad(at + r * step + e, columns - 1u - e, {sum});
        }}
    }}
}}
fn put_tile(own: Part, i: u32, j: u32, rows: u32, first: u32) {{
    if ACROSS > 0u {{
        put_each(own, i, j, rows, first);
        return;
    }}
    let row = own.c / params.n + i;
    let columns = min(32u, params.n - j);
    let at = own.c + i * params.n + j;
    unisono_panel_add(at, params.n, rows, 32u * first, columns, {places}({starts}), {places}({apart}));
}}
{}",
        PUT_FINISHED.replace("put_tile", "put_each")
    )
}
