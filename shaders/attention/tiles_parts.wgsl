// Grid: x: the workgroups of each part one behind the other; z: the pairs of sample and head.

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    t = index;
    enter(params.first_z + group.z);
