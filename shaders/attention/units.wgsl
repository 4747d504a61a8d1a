// attention, units: what the kernels of attention share where a matrix unit multiplies, behind tiles.wgsl.
// Operands are numbers that f16 holds. The weights of a block, and what gradients have in their place, are
// rounded to f16. A product of a block begins with 0 and is serial over blocks of the unit's size.

// The fours of halves from one place to the next where 16 steps of places lie side by side, and from one
// row to the next where 64 places or columns do. Two more than there are, so that what is read side by side
// is in other banks.
const STRIDE: u32 = 6u;
const WIDE: u32 = 18u;

// halves[r * STRIDE + q]: steps 4 q to 4 q + 3 of own place r, or from 64 on of row r - 64 of the block.
// halves[r * WIDE + s]: columns 4 s to 4 s + 3 of row r of the block.
var<workgroup> halves: array<vec4<f16>, 576>;
const BEHIND: u32 = 64u;
// shares[r * WIDE + s]: the weights of row r of the block in own places 4 s to 4 s + 3.
var<workgroup> shares: array<vec4<f16>, 576>;

fn put_halves(block: mat4x4<f32>, place: u32, steps: u32) {
    for (var r = 0u; r < 4u; r++) { halves[(place + r) * STRIDE + steps / 4u] = vec4<f16>(block[r]); }
}

// Puts the four rows and four own places that this invocation has into the tile, rounded.
fn put_tile(four: mat4x4<f32>) {
    for (var r = 0u; r < 4u; r++) {
        let x = four[r];
        let rounded = vec4<f32>(round_half(x.x), round_half(x.y), round_half(x.z), round_half(x.w));
        shares[(t / 16u * 4u + r) * WIDE + t % 16u] = vec4<f16>(rounded);
    }
}
