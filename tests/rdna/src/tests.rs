//! Checks single instructions against AMD's manual.

use super::{Bound, Code, Group, Launch, Mode};

/// Runs code on one buffer. `of` has the number of invocations in a workgroup, and of workgroups.
fn run(code: &str, of: (u32, u32), words: &[u32]) -> Result<Vec<u32>, String> {
    run_in(Mode { flushes: true, seed: 0 }, code, of, words)
}

fn run_in(
    mode: Mode,
    code: &str,
    (invocations, groups): (u32, u32),
    words: &[u32],
) -> Result<Vec<u32>, String> {
    let group = Group { invocations: [invocations, 1, 1], reads: [true, false, false] };
    let mut buffers = vec![words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()];
    let bindings = [Bound { buffer: 0, offset: 0, bytes: 4 * words.len() as u32 }];
    let launch = Launch { grid: [groups, 1, 1], params: &[7, 9], bindings: &bindings };
    Code::read(code, group)?.run(launch, &mut buffers, mode)?;
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    Ok(buffers[0].chunks(4).map(word).collect())
}

/// What each kernel begins with: the buffer in `s[8:11]`, the number of the workgroup in `s12`, and the
/// address of the lane's word in `v1`.
const BEGIN: &str = "BB0:
\ts_mov_b32 s12, s3                      ; be8c0003
\ts_movk_i32 s3, 0x8000
\ts_load_b128 s[4:7], s[2:3], null
\ts_load_b128 s[8:11], s[2:3], 0x10
\tv_bfe_u32 v0, v0, 0, 10
\tv_lshlrev_b32_e32 v1, 2, v0
";

/// Runs code on one wave of four lanes, with these words in `v2`. Returns what is in `v2` afterwards.
fn lanes(code: &str, words: [u32; 4]) -> [u32; 4] {
    lanes_in(Mode { flushes: true, seed: 0 }, code, words)
}

fn lanes_in(mode: Mode, code: &str, words: [u32; 4]) -> [u32; 4] {
    let code = format!(
        "{BEGIN}\tbuffer_load_b32 v2, v1, s[8:11], 0 offen\n\ts_waitcnt vmcnt(0)\n{code}\n\
         \tbuffer_store_b32 v2, v1, s[8:11], 0 offen\n\ts_endpgm\n"
    );
    run_in(mode, &code, (4, 1), &words).unwrap().try_into().unwrap()
}

fn floats(code: &str, words: [f32; 4]) -> [f32; 4] {
    lanes(code, words.map(f32::to_bits)).map(f32::from_bits)
}

#[test]
fn integers_are_computed_as_the_manual_says() {
    let with = |code: &str| lanes(code, [0, 1, 0x8000_0001, u32::MAX]);
    assert_eq!(with("v_add_nc_u32_e32 v2, 1, v2"), [1, 2, 0x8000_0002, 0]);
    assert_eq!(with("v_subrev_nc_u32_e32 v2, 1, v2"), [u32::MAX, 0, 0x8000_0000, u32::MAX - 1]);
    assert_eq!(with("v_lshl_add_u32 v2, v2, 4, 3"), [3, 19, 19, u32::MAX - 15 + 3]);
    assert_eq!(with("v_xad_u32 v2, v2, -1, 1"), [0, u32::MAX, 0x7fff_ffff, 1]);
    assert_eq!(with("v_mul_hi_u32 v2, v2, 0x10000"), [0, 0, 0x8000, 0xffff]);
    assert_eq!(with("v_mad_i32_i24 v2, v2, 3, 5"), [5, 8, 8, 2]);
    assert_eq!(with("v_bfe_u32 v2, v2, 31, 1"), [0, 0, 1, 1]);
    assert_eq!(with("v_add_nc_u32_e64 v2, v2, 1 clamp"), [1, 2, 0x8000_0002, u32::MAX]);
    assert_eq!(with("v_sub_nc_u32_e64 v2, v2, 2 clamp"), [0, 0, 0x7fff_ffff, u32::MAX - 2]);
    assert_eq!(with("v_clz_i32_u32_e32 v2, v2"), [u32::MAX, 31, 0, 0]);
    assert_eq!(with("v_ashrrev_i32_e32 v2, 31, v2"), [0, 0, u32::MAX, u32::MAX]);
}

#[test]
fn carries_and_double_words_go_from_word_to_word() {
    let below = "v_sub_co_u32 v2, vcc, v2, 2\n v_add_co_ci_u32_e32 v2, vcc, 0, v2, vcc";
    assert_eq!(lanes(below, [1, 2, 3, 0]), [0, 0, 1, u32::MAX]);
    assert_eq!(lanes("v_lshrrev_b64 v[2:3], 0, 0xff7fffff\n v_mov_b32_e32 v2, v3", [9; 4]), [0; 4]);
}

#[test]
fn floats_round_once_flush_and_take_signs() {
    let tiny = f32::from_bits(1);
    let near = 1.0 + 1.0 / 4096.0;
    assert_eq!(
        floats("v_fma_f32 v2, v2, v2, -1.0", [near, 2.0, 0.0, 1.0]),
        [near.mul_add(near, -1.0), 3.0, -1.0, 0.0]
    );
    assert_ne!(near.mul_add(near, -1.0), near * near - 1.0);
    assert_eq!(
        floats("v_add_f32_e32 v2, 0, v2", [tiny, -tiny, 1.0, f32::MIN_POSITIVE]),
        [0.0, 0.0, 1.0, f32::MIN_POSITIVE]
    );
    assert_eq!(floats("v_mul_f32_e64 v2, -|v2|, 2.0", [3.0, -3.0, 0.5, -0.0]), [-6.0, -6.0, -1.0, 0.0]);
    assert_eq!(floats("v_fmaak_f32 v2, v2, v2, 0x40400000", [1.0, 2.0, 3.0, 4.0]), [4.0, 7.0, 12.0, 19.0]);
    assert_eq!(floats("v_fmamk_f32 v2, v2, 0x40400000, v2", [1.0, 2.0, 3.0, 4.0]), [4.0, 8.0, 12.0, 16.0]);
    assert_eq!(floats("v_med3_f32 v2, v2, -1.0, 1.0", [5.0, -5.0, 0.5, 1.0]), [1.0, -1.0, 0.5, 1.0]);
    assert_eq!(
        lanes("v_cvt_i32_f32_e32 v2, v2", [-1.9f32, 3e9, f32::NAN, 7.5].map(f32::to_bits)),
        [u32::MAX, i32::MAX as u32, 0, 7]
    );
    assert_eq!(floats("v_rcp_f32_e32 v2, v2", [2.0, 3.0, 0.0, -4.0]), [0.5, 1.0 / 3.0, f32::INFINITY, -0.25]);
}

#[test]
fn subnormal_numbers_are_flushed_with_their_sign_or_kept() {
    let (least, tiny) = (f32::MIN_POSITIVE, f32::from_bits(1));
    let half = |flushes| {
        let words = [least, -least, tiny, 1.5 * least].map(f32::to_bits);
        lanes_in(Mode { flushes, seed: 0 }, "v_mul_f32_e32 v2, 0.5, v2", words)
    };
    assert_eq!(half(true), [0, 0x8000_0000, 0, 0]);
    assert_eq!(half(false), [0x40_0000, 0x8040_0000, 0, 0x60_0000]);
    let same =
        |flushes| lanes_in(Mode { flushes, seed: 0 }, "v_mul_f32_e32 v2, 1.0, v2", [1, 0x8000_0001, 0, 0]);
    assert_eq!((same(true), same(false)), ([0, 0x8000_0000, 0, 0], [1, 0x8000_0001, 0, 0]));
}

/// An approximation is off by less than a unit in the last place. An exact result is never off.
#[test]
fn approximations_are_one_of_the_floats_around() {
    let thirds = [3f32, 7.0, 0.3, 4.0].map(f32::to_bits);
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let found =
            lanes_in(Mode { flushes: true, seed }, "v_rcp_f32_e32 v2, v2", thirds).map(f32::from_bits);
        for (x, own) in [3f64, 7.0, f64::from(0.3f32)].into_iter().zip(found) {
            let unit = f64::from(own.next_up()) - f64::from(own);
            assert!((f64::from(own) - 1.0 / x).abs() < unit);
        }
        assert_eq!(found[3], 0.25);
        seen.insert(found[0].to_bits());
    }
    assert_eq!(seen.len(), 2);
}

/// Scratch memory, and instructions with two addresses in a workgroup's memory.
#[test]
fn memory_of_lanes_and_of_workgroups() {
    let own = "v_add_nc_u32_e32 v3, 1, v2\n scratch_store_b64 off, v[2:3], s12 offset:-4096\n\
               scratch_load_b32 v2, off, s12 offset:-4092";
    assert_eq!(lanes(own, [5, 6, 7, 8]), [6, 7, 8, 9]);
    let two = "v_add_nc_u32_e32 v3, 1, v2\n ds_store_2addr_stride64_b32 v1, v2, v3 offset0:1 offset1:2\n\
               ds_load_2addr_b32 v[4:5], v1 offset0:128 offset1:64\n v_lshl_add_u32 v2, v4, 8, v5";
    assert_eq!(lanes(two, [5, 6, 7, 8]), [0x605, 0x706, 0x807, 0x908]);
}

#[test]
fn lanes_that_do_not_run_keep_what_they_have() {
    let above = "v_cmp_gt_u32_e32 vcc, v2, v0\n s_and_saveexec_b64 s[14:15], vcc\n s_cbranch_execz BB2\n\
                 BB1:\n v_mov_b32_e32 v2, 0x64\n BB2:\n s_mov_b64 exec, s[14:15]";
    assert_eq!(lanes(above, [0, 5, 1, 9]), [0, 100, 1, 100]);
    let exec = "s_mov_b64 s[14:15], exec\n v_cmpx_eq_i32_e32 1, v0\n v_mov_b32_e32 v2, 0x64\n\
                s_mov_b64 exec, s[14:15]";
    assert_eq!(lanes(exec, [0, 5, 1, 9]), [0, 100, 1, 9]);
    let select = "v_cmp_lt_i32_e64 s[14:15], v2, 0\n v_cndmask_b32_e64 v2, 8, v0, s[14:15]";
    assert_eq!(lanes(select, [0, u32::MAX, 1, u32::MAX]), [8, 1, 8, 3]);
}

#[test]
fn scalars_jump_and_count() {
    let triangle = "s_mov_b32 s14, 0\n s_movk_i32 s15, 0x4\n BB1:\n s_add_i32 s14, s14, s15\n\
                    s_sub_u32 s15, s15, 1\n s_cmp_lg_u32 s15, 0\n s_cbranch_scc1 BB1\n BB2:\n\
                    v_add_nc_u32_e32 v2, s14, v2";
    assert_eq!(lanes(triangle, [0, 1, 2, 3]), [10, 11, 12, 13]);
    let params = "s_buffer_load_b64 s[14:15], s[4:7], null\n s_mul_i32 s14, s14, s15\n\
                  v_mov_b32_e32 v2, s14";
    assert_eq!(lanes(params, [0; 4]), [63; 4]);
    let field = "s_bfm_b32 s14, 4, 8\n s_bfe_u32 s14, s14, 0x40006\n v_mov_b32_e32 v2, s14";
    assert_eq!(lanes(field, [0; 4]), [0b1100; 4]);
    let sign = "s_movk_i32 s14, 0xfffe\n s_cmpk_lt_i32 s14, 0xffff\n s_cselect_b32 s14, s14, 5\n\
                v_mov_b32_e32 v2, s14";
    assert_eq!(lanes(sign, [0; 4]), [u32::MAX - 1; 4]);
}

/// Each of two waves reads what the other wrote before the barrier.
#[test]
fn waves_meet_at_barriers() {
    let code = format!(
        "{BEGIN}\tv_add_nc_u32_e32 v3, 0x64, v0\n\tds_store_b32 v1, v3 offset:16\n\ts_barrier\n\
         \tv_sub_nc_u32_e32 v4, 0x7f, v0\n\tv_lshlrev_b32_e32 v4, 2, v4\n\
         \tds_load_2addr_b32 v[5:6], v4 offset0:4 offset1:4\n\ts_lshl_b32 s12, s12, 9\n\
         \tbuffer_store_b32 v6, v1, s[8:11], s12 offen\n\ts_endpgm\n"
    );
    let found = run(&code, (128, 2), &[0; 256]).unwrap();
    let expected: Vec<u32> = (0..256).map(|at| 100 + 127 - at % 128).collect();
    assert_eq!(found, expected);
    let one = "v_readfirstlane_b32 s14, v0\n s_cmp_lg_u32 s14, 0\n s_cbranch_scc1 BB9\n s_barrier\n BB9:";
    let error = run(&code.replace("s_barrier", one), (128, 1), &[0; 256]).unwrap_err();
    assert_eq!(error, "a barrier to which not all waves come");
}

#[test]
fn what_is_behind_the_end_is_zero_and_is_not_written() {
    let code = format!(
        "{BEGIN}\tv_mov_b32_e32 v2, 5\n\tbuffer_store_b32 v2, v1, s[8:11], 0 offen\n\
                        \tbuffer_load_b128 v[4:7], v1, s[8:11], 0 offen\n\
                        \tbuffer_store_b32 v6, v1, s[8:11], 0 offen\n\ts_endpgm\n"
    );
    assert_eq!(run(&code, (8, 1), &[1, 2, 3, 4]).unwrap(), [5, 5, 0, 0]);
}

#[test]
fn what_is_not_known_is_an_error() {
    let error = run("\tv_dot4_i32_iu8 v1, v2, v3, v4\n", (1, 1), &[]).unwrap_err();
    assert_eq!(error, "not known: v_dot4_i32_iu8 v1, v2, v3, v4");
    let error = run("\ts_load_b32 s4, s[6:7], null\n", (1, 1), &[]).unwrap_err();
    assert_eq!(error, "cannot be run: s_load_b32 s4, s[6:7], null");
    let wrong = [
        "v_mov_b32_e32 v1, s[2:",
        "v_mov_b32_e32 v256, 0",
        "s_mov_b32 s106, 0",
        "v_mov_b32_e32 v[5:4], 0",
        "s_load_b64 s[8:10], s[2:3], null",
        "s_mov_b64 s8, exec",
        "v_add_f32_e32 v1, v2",
        "v_add_f32_e64 v1, v2, v3 clamp",
        "ds_load_2addr_b32 v4, v1 offset0:1",
        "s_branch BB7",
    ];
    for line in wrong {
        assert!(run(&format!("{line}\ns_endpgm\n"), (1, 1), &[]).is_err(), "{line}");
    }
    assert_eq!(run("s_nop 0", (1, 1), &[]).unwrap_err(), "goes on behind its last instruction");
    assert!(run("s_endpgm", (1, 1), &[]).is_ok());
    assert!(run("s_endpgm", (0, 1), &[]).is_err() && run("s_endpgm", (2048, 1), &[]).is_err());
}
