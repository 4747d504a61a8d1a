// random_draw: returns word `element` of the sample in row `row` of a run whose first sample is at `position`
// in its epoch.
fn random_draw(key: vec2<u32>, epoch: u32, position_low: u32, position_high: u32, row: u32, element: u32) -> u32 {
    let low = position_low + row;
    let carry = select(0u, 1u, low < position_low);
    return random_word(key, epoch, low, position_high + carry, element);
}
