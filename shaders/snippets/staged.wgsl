// staged, firsts, ends: the workgroup memory of reductions along rows. A workgroup stages eight fours of each
// of its 64 rows at a time, so that neighbours load side by side; then each invocation reads its own row. A
// row of `staged` has nine fours, so that neither has bank conflicts. firsts and ends: where each row begins
// and ends in the operand, in fours.
var<workgroup> staged: array<vec4<f32>, 576>;
var<workgroup> firsts: array<u32, 64>;
var<workgroup> ends: array<u32, 64>;
