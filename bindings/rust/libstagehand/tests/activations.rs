//! Tests plans for saved storages: the arguments reach the planner, and its answer comes back.

use libstagehand::*;

const SECOND: u64 = 1_000_000_000;
const MEGABYTE: u64 = 1_000_000;
const LAYERS: u64 = 4;
/// The places of the storages that are not cheap.
const WHOLE: [u32; LAYERS as usize] = [0, 2, 4, 6];

/// Each layer takes a second, forward and then backward. It saves 100 MB and, from it, 50 MB that are cheap.
fn storages() -> Vec<Activation<'static>> {
    let mut all = Vec::new();
    for layer in 0..LAYERS {
        let first_use_ns = (2 * LAYERS - 1 - layer) * SECOND;
        let whole = Activation {
            bytes: 100 * MEGABYTE,
            produced_ns: layer * SECOND,
            first_use_ns,
            last_use_ns: first_use_ns + SECOND,
            ..Default::default()
        };
        all.push(whole);
        let inputs = &WHOLE[layer as usize..][..1];
        all.push(Activation { bytes: 50 * MEGABYTE, recompute_ns: Some(SECOND / 100), inputs, ..whole });
    }
    all
}

fn step<'a>(activations: &'a [Activation<'a>]) -> TrainingStep<'a> {
    TrainingStep {
        activations,
        forward_end_ns: LAYERS * SECOND,
        end_ns: 2 * LAYERS * SECOND,
        to_host_bytes_per_second: 100 * MEGABYTE,
        to_device_bytes_per_second: 100 * MEGABYTE,
        ..Default::default()
    }
}

fn bytes_of(plan: &ActivationPlan, fate: Fate) -> u64 {
    storages().iter().zip(&plan.fates).filter(|(_, is)| **is == fate).map(|(storage, _)| storage.bytes).sum()
}

#[test]
fn a_target_for_the_peak() {
    let all = storages();
    let plan = plan_activations(&step(&all), Target::PeakBytes(350 * MEGABYTE)).unwrap();
    assert_eq!((plan.fates.len(), plan.figures.meets_target), (8, 1));
    assert_eq!(plan.figures.plain_peak_bytes, 600 * MEGABYTE);
    assert!(plan.figures.peak_bytes <= 350 * MEGABYTE && plan.figures.spilled_bytes > 0);
    assert_eq!(bytes_of(&plan, Fate::Keep), plan.figures.kept_bytes);
    assert_eq!(bytes_of(&plan, Fate::Spill), plan.figures.spilled_bytes);
    assert_eq!(bytes_of(&plan, Fate::Recompute), plan.figures.recomputed_bytes);
    assert!(8 * SECOND <= plan.figures.least_step_ns && plan.figures.least_step_ns <= plan.figures.step_ns);
}

#[test]
fn a_target_for_the_time() {
    let all = storages();
    let plan = plan_activations(&step(&all), Target::StepNs(9 * SECOND)).unwrap();
    assert_eq!(plan.figures.meets_target, 1);
    assert!(plan.figures.step_ns <= 9 * SECOND && plan.figures.peak_bytes < 600 * MEGABYTE);
    assert!(0 < plan.figures.least_peak_bytes && plan.figures.least_peak_bytes <= plan.figures.peak_bytes);
}

#[test]
fn cheap_storages_are_computed_again_without_a_link() {
    let all = storages();
    let unlinked = TrainingStep { to_host_bytes_per_second: 0, ..step(&all) };
    let plan = plan_activations(&unlinked, Target::PeakBytes(450 * MEGABYTE)).unwrap();
    assert!(plan.figures.recomputed_bytes > 0 && plan.figures.spilled_bytes == 0);
    let whole: Vec<_> = all.iter().map(|storage| Activation { recompute_ns: None, ..*storage }).collect();
    let unlinked = TrainingStep { activations: &whole, ..unlinked };
    let plan = plan_activations(&unlinked, Target::PeakBytes(450 * MEGABYTE)).unwrap();
    assert_eq!((plan.figures.meets_target, plan.figures.kept_bytes), (0, 600 * MEGABYTE));
    assert_eq!(plan.figures.least_step_ns, u64::MAX, "no choice has so low a peak");
}

#[test]
fn every_field_reaches_the_planner() {
    let all = storages();
    let target = Target::PeakBytes(350 * MEGABYTE);
    let spilled = |step: TrainingStep<'_>| plan_activations(&step, target).unwrap().figures.spilled_bytes;
    assert!(spilled(step(&all)) > 0);
    assert_eq!(spilled(TrainingStep { to_device_bytes_per_second: 0, ..step(&all) }), 0);
    assert_eq!(spilled(TrainingStep { other_to_host_bytes_per_second: 100 * MEGABYTE, ..step(&all) }), 0);
    assert_eq!(spilled(TrainingStep { other_to_device_bytes_per_second: 100 * MEGABYTE, ..step(&all) }), 0);
    assert_eq!(spilled(TrainingStep { least_bytes: 200 * MEGABYTE, ..step(&all) }), 0);
    let time = |step: TrainingStep<'_>, target| plan_activations(&step, target).unwrap().figures.step_ns;
    assert!(time(TrainingStep { copy_latency_ns: SECOND, ..step(&all) }, target) > time(step(&all), target));
    let used: Vec<_> = all.iter().map(|storage| Activation { released_ns: 4 * SECOND, ..*storage }).collect();
    let plan = plan_activations(&step(&used), target).unwrap();
    assert_eq!(plan.figures.peak_bytes, 600 * MEGABYTE, "the forward uses everything until its end");

    // Storages whose uses follow each other closely: it matters what may be on its way.
    let late: Vec<_> = (0..LAYERS)
        .map(|layer| {
            let use_ns = 7 * SECOND - layer * SECOND / 10;
            let produced_ns = layer * SECOND;
            let bytes = 100 * MEGABYTE;
            Activation { bytes, produced_ns, first_use_ns: use_ns, last_use_ns: use_ns, ..Default::default() }
        })
        .collect();
    let others = [MemoryPoint { ns: 0, bytes: 300 * MEGABYTE }, MemoryPoint { ns: 4 * SECOND, bytes: 0 }];
    let full = TrainingStep { others: &others, to_host_bytes: 1 << 40, to_device_bytes: 1 << 40, ..step(&late) };
    let target = Target::PeakBytes(500 * MEGABYTE);
    assert_eq!(plan_activations(&full, target).unwrap().figures.plain_peak_bytes, 700 * MEGABYTE);
    assert!(time(TrainingStep { to_device_bytes: 1, ..full }, target) > time(full, target));
    let slow = TrainingStep { others: &[], to_host_bytes_per_second: 60 * MEGABYTE, ..full };
    let target = Target::PeakBytes(250 * MEGABYTE);
    assert!(time(TrainingStep { to_host_bytes: 1, ..slow }, target) > time(slow, target));
}

#[test]
fn impossible_steps_are_named() {
    let mut all = storages();
    let error = plan_activations(&step(&all), Target::PeakBytes(0)).unwrap_err();
    assert_eq!(error.status(), Status::INVALID_ARGUMENT);
    assert!(error.text().contains("exactly one of them"), "{error}");
    all[5].inputs = &[99];
    let error = plan_activations(&step(&all), Target::PeakBytes(1)).unwrap_err();
    assert!(error.text().contains("activations[5].inputs names activation 99 of 8"), "{error}");
    let empty = plan_activations(&step(&[]), Target::StepNs(1)).unwrap();
    assert!(empty.fates.is_empty() && empty.figures.peak_bytes == 0);
}

#[test]
fn a_choice_is_simulated() {
    let all = storages();
    let step = step(&all);
    let plan = plan_activations(&step, Target::PeakBytes(350 * MEGABYTE)).unwrap();
    let simulated = simulate_activations(&step, &plan.fates, 350 * MEGABYTE).unwrap();
    assert_eq!(simulated.figures.step_ns, plan.figures.step_ns);
    assert_eq!(simulated.memory.iter().map(|point| point.bytes).max(), Some(plan.figures.peak_bytes));
    let kept = simulate_activations(&step, &[], 0).unwrap();
    assert_eq!(kept.memory.len(), 8);
    assert_eq!(kept.memory[3], MemoryPoint { ns: 3 * SECOND, bytes: 600 * MEGABYTE });
    assert_eq!(kept.memory[7], MemoryPoint { ns: 8 * SECOND, bytes: 0 });
    let error = simulate_activations(&step, &[Fate::Keep], 0).unwrap_err();
    assert!(error.text().contains("1 fates, but 8 activations"), "{error}");
    let error = simulate_activations(&step, &[Fate::Recompute; 8], 0).unwrap_err();
    assert!(error.text().contains("fates[0] is SH_FATE_RECOMPUTE"), "{error}");
}
