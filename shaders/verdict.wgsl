// verdict: decides whether a step commits, before anything of the state changes. One workgroup.
// commit: one word. It becomes 0 if this step commits, and 1 if it changes nothing: because a number is bad,
// all weights are 0, or the step before it changed nothing, unless it follows no other (chained[0] is 0).
// state_flag: one word, which the step before has set if a new state is not finite. It becomes 0.
// Shapes: flags: a word every `stride` words, not 0 where a sum is not finite; numbers: [first, end), the
// bits of f32 that must be finite; weights: the word `weight` is the bits of the sum of the weights.
// Constants: NUMBERS and WEIGHTS, whether these are looked at; where not, any memory is bound.
// Params: VerdictParams of params.rs.

@group(0) @binding(1) var<storage, read_write> commit: array<u32>;
@group(0) @binding(2) var<storage, read_write> state_flag: array<u32>;
@group(0) @binding(3) var<storage, read> chained: array<u32>;
@group(0) @binding(4) var<storage, read> flags: array<u32>;
@group(0) @binding(5) var<storage, read> numbers: array<u32>;
@group(0) @binding(6) var<storage, read> weights: array<u32>;

var<workgroup> found: atomic<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) t: u32) {
    if t == 0u { atomicStore(&found, 0u); }
    workgroupBarrier();
    var bad = false;
    for (var i = t; i < params.flags; i += 64u) {
        bad = bad | (flags[i * params.stride] != 0u);
    }
    if NUMBERS {
        for (var i = params.first + t; i < params.end; i += 64u) {
            bad = bad | ((numbers[i] & 0x7f800000u) == 0x7f800000u);
        }
    }
    if bad { atomicStore(&found, 1u); }
    workgroupBarrier();
    if t == 0u {
        var skips = (chained[0] != 0u) & ((commit[0] | state_flag[0]) != 0u);
        skips = skips | (atomicLoad(&found) != 0u);
        if WEIGHTS { skips = skips | ((weights[params.weight] & 0x7fffffffu) == 0u); }
        commit[0] = u32(skips);
        state_flag[0] = 0u;
    }
}
