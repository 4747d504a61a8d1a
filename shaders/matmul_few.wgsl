// matmul_few: the product of snippets/product.wgsl for a CPU and few rows, such as those of a decoder that
// reads one token. Most of its time goes to reading b from memory. An invocation computes all rows and WIDTH
// columns, and reads each element of b once, where it is stored. All memory is the invocation's own: there
// are no barriers.
// `unisono_few_product` is what takes the time. unisono-cpu has code of its own for it. Grid: x: batch
// * chunks; y: WIDTH columns each. The chunks of a product come one after another, because columns of a
// transposed b lie side by side in memory: with the columns first it takes twice as long.
// Constants: ROWS, at least m; WIDTH, a multiple of eight; those of product.wgsl. Functions generated for the
// product: left and right, which return an element of a and of b.

// tile[WIDTH / 4 * i + h]: row i of the columns 4 * h to 4 * h + 3.
var<workgroup> tile: array<vec4<f32>, WIDTH / 4u * ROWS>;

// Where an operand is: its first element, how far apart two rows of a or two columns of b are, and how far
// apart two steps are.
struct Side { first: u32, next: u32, step: u32 }

// Computes m rows of the tile: the sums over `steps` steps. Columns behind `last` become any numbers.
fn unisono_few_product(a: Side, b: Side, m: u32, steps: u32, last: u32) {
    for (var i = 0u; i < m; i++) {
        for (var h = 0u; h < WIDTH / 4u; h++) {
            var sum = vec4<f32>();
            for (var p = 0u; p < steps; p++) {
                var quad: vec4<f32>;
                for (var s = 0u; s < 4u; s++) {
                    quad[s] = right(b.first + p * b.step + min(4u * h + s, last) * b.next);
                }
                sum = fma(vec4<f32>(left(a.first + i * a.next + p * a.step)), quad, sum);
            }
            tile[WIDTH / 4u * i + h] = sum;
        }
    }
}

// Returns where the rows of a are from an inner step on.
fn left_side(own: Part) -> Side {
    if TRANSPOSE_A { return Side(own.a + own.start * params.a_step, 1u, params.a_step); }
    return Side(own.a + own.start, params.a_step, 1u);
}

// Returns where the columns of b are from column j and an inner step on.
fn right_side(own: Part, j: u32) -> Side {
    if TRANSPOSE_B { return Side(own.b + j * params.b_step + own.start, params.b_step, 1u); }
    return Side(own.b + own.start * params.b_step + j, 1u, params.b_step);
}

@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) group: vec3<u32>) {
    let own = part(group.x);
    let j0 = group.y * WIDTH;
    let steps = max(own.end, own.start) - own.start;
    unisono_few_product(left_side(own), right_side(own, j0), params.m, steps, params.n - 1u - j0);
    let quads = min(WIDTH / 4u, (params.n - j0 + 3u) / 4u);
    for (var i = 0u; i < params.m; i++) {
        for (var h = 0u; h < quads; h++) { put_row(own, i, j0 + 4u * h, tile[WIDTH / 4u * i + h]); }
    }
}
