//! Mapped downloads are read where they lie, and the device runs nothing until they are dropped.

use crate::common::*;
use unisono_gpu::{Device, GpuError, MappedDownload, Writer};
use unisono_graph::plan::{Role, Transfer};

#[test]
fn what_is_kept_of_a_download_stays_as_it_is_and_nothing_runs_before_it_is_given_back() {
    for (adapter, shared) in all().iter().flat_map(|adapter| [(adapter, false), (adapter, true)]) {
        println!("{adapter}, shared with the host: {shared}");
        let mut device = Device::open(adapter).unwrap();
        let mut plan = plan(256);
        if shared {
            [Y, COPIED].into_iter().for_each(|id| plan.buffers[id].role = Role::Shared);
        }
        let mut executable = device.load(&plan).unwrap();
        let mut other = device.load(&plan).unwrap();
        let mut pending =
            device.submit(&mut executable, 0, &mut |t, to| to.write(&input(t.slot, 256))).unwrap();
        let mut kept: Vec<MappedDownload> = Vec::new();
        while pending.is_pending() {
            device.wait_part(&mut executable, &mut pending, &mut |_, lent| kept.push(lent)).unwrap();
        }
        // The state may be read and written meanwhile.
        let state = device.read_state(1).unwrap();
        device.write_state(1, &state).unwrap();
        for executable in [&mut executable, &mut other] {
            let refused = device.submit(executable, 1, &mut |_, _| unreachable!()).unwrap_err();
            assert!(matches!(refused, GpuError::Plan { .. }), "{refused}");
            assert_eq!(refused.to_string(), "downloads: some are still kept");
        }
        // The downloads are read on another thread, and dropped one after the other.
        let halves = std::thread::spawn(move || {
            let copied = kept.pop().map(|lent| lent.to_vec());
            (kept.pop().map(|lent| lent.to_vec()), copied)
        });
        let (whole, half) = halves.join().unwrap();
        assert_eq!(whole, Some(bytes((0..256).map(sum))));
        assert_eq!(half, Some(bytes((0..256).map(|i| if i < 128 { 0.0 } else { sum(i) }))));
        step(&device, &mut executable, 256);
        step(&device, &mut other, 256);
        assert_eq!(device.read_state(1).unwrap(), bytes((0..256).map(|i| 2.0 * sum(i))));
    }
}

#[test]
fn uploads_are_written_where_they_were_lent_while_another_segment_runs() {
    for adapter in all() {
        println!("{adapter}");
        let mut device = Device::open(&adapter).unwrap();
        let mut executable = device.load(&plan(256)).unwrap();
        step(&device, &mut executable, 256);
        let pending = device.submit(&mut executable, 1, &mut |_, _| unreachable!()).unwrap();
        let mut lent = device.lend_uploads(&mut executable, 0, &|transfer| transfer.slot == 7).unwrap();
        device.wait(&mut executable, pending, &mut |_, _| unreachable!()).unwrap();
        let [(7, memory)] = &mut *lent else { panic!("{lent:?}") };
        let values = input(7, 256);
        std::thread::scope(|scope| {
            let mut last = memory.part();
            let first = last.split_off(400);
            for (mut part, values) in [(first, &values[..400]), (last, &values[400..])] {
                scope.spawn(move || values.chunks(100).for_each(|values| part.write(values)));
            }
        });
        let mut kept = |t: &Transfer, to: &mut Writer<'_>| match t.slot {
            7 => to.keep(),
            slot => to.write(&input(slot, 256)),
        };
        let refused = device.submit(&mut executable, 0, &mut kept).unwrap_err();
        assert_eq!(refused.to_string(), "uploads: some are still kept");
        let refused = device.lend_uploads(&mut executable, 0, &|_| true).unwrap_err();
        assert_eq!(refused.to_string(), "uploads: some are still kept");
        drop(lent);
        let check = &mut |t: &Transfer, got: &[u8]| {
            if t.slot == 9 {
                assert_eq!(got, bytes((0..256).map(sum)));
            }
        };
        device.run(&mut executable, 0, &mut kept, check).unwrap();
        // What was written is there for one submission.
        let refused = device.submit(&mut executable, 0, &mut kept).unwrap_err();
        assert_eq!(refused.to_string(), "upload of slot 7: 0 of 1024 bytes written");
        for bytes in [1020, 1028] {
            let mut lent = device.lend_uploads(&mut executable, 0, &|transfer| transfer.slot == 7).unwrap();
            lent[0].1.part().write(&[&values[..], &values].concat()[..bytes]);
            drop(lent);
            let refused = device.submit(&mut executable, 0, &mut kept).unwrap_err();
            assert_eq!(refused.to_string(), "upload of slot 7: 0 of 1024 bytes written");
        }
        // One part has too much, and the other so much less.
        let mut lent = device.lend_uploads(&mut executable, 0, &|transfer| transfer.slot == 7).unwrap();
        let mut last = lent[0].1.part();
        last.split_off(400).write(&values[..500]);
        last.write(&values[..524]);
        drop(lent);
        let refused = device.submit(&mut executable, 0, &mut kept).unwrap_err();
        assert_eq!(refused.to_string(), "upload of slot 7: 0 of 1024 bytes written");
        // Nobody has to take what was lent.
        drop(device.lend_uploads(&mut executable, 0, &|_| true).unwrap());
        step(&device, &mut executable, 256);
    }
}

#[test]
fn a_device_may_go_before_what_it_lent() {
    for adapter in all() {
        let mut device = Device::open(&adapter).unwrap();
        let mut executable = device.load(&plan(256)).unwrap();
        let mut pending =
            device.submit(&mut executable, 0, &mut |t, to| to.write(&input(t.slot, 256))).unwrap();
        let mut kept: Vec<MappedDownload> = Vec::new();
        device.wait_part(&mut executable, &mut pending, &mut |_, lent| kept.push(lent)).unwrap();
        device.lose();
        drop(executable);
        drop(device);
        assert_eq!(kept[0].to_vec(), bytes((0..256).map(sum)));
    }
}
