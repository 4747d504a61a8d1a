// philox: Philox 4x32-10, the same words as unisono-random on the host. It uses integer arithmetic only.
//
// random_word(key, epoch, position_low, position_high, element) is word element % 4 of
//   philox(vec4(element / 4, position_low, epoch, position_high), key).
// key: Stream::key() of (seed, purpose, layer path).
// position: the position of the sample in its epoch, 64 bits in two words.
// element: the index within the sample, below 2^32.
// A kernel that needs four neighbouring elements calls philox once and uses all four words.

const PHILOX_MULTIPLIER_0: u32 = 0xD2511F53u;
const PHILOX_MULTIPLIER_1: u32 = 0xCD9E8D57u;
const PHILOX_WEYL: vec2<u32> = vec2<u32>(0x9E3779B9u, 0xBB67AE85u);
const PHILOX_ROUNDS: u32 = 10u;

fn random_word(key: vec2<u32>, epoch: u32, position_low: u32, position_high: u32, element: u32) -> u32 {
    let block = philox(vec4<u32>(element / 4u, position_low, epoch, position_high), key);
    return block[element % 4u];
}

fn philox(counter: vec4<u32>, key: vec2<u32>) -> vec4<u32> {
    var c = counter;
    var k = key;
    for (var round = 0u; round < PHILOX_ROUNDS; round++) {
        let high_0 = philox_multiply_high(PHILOX_MULTIPLIER_0, c.x);
        let high_1 = philox_multiply_high(PHILOX_MULTIPLIER_1, c.z);
        let low_0 = PHILOX_MULTIPLIER_0 * c.x;
        let low_1 = PHILOX_MULTIPLIER_1 * c.z;
        c = vec4<u32>(high_1 ^ c.y ^ k.x, low_1, high_0 ^ c.w ^ k.y, low_0);
        k += PHILOX_WEYL;
    }
    return c;
}

// The high 32 bits of a 64-bit product, from 16-bit halves; no intermediate exceeds 32 bits.
fn philox_multiply_high(a: u32, b: u32) -> u32 {
    let a_low = a & 0xFFFFu;
    let a_high = a >> 16u;
    let b_low = b & 0xFFFFu;
    let b_high = b >> 16u;
    let middle = a_high * b_low + ((a_low * b_low) >> 16u);
    let carry = a_low * b_high + (middle & 0xFFFFu);
    return a_high * b_high + (middle >> 16u) + (carry >> 16u);
}
