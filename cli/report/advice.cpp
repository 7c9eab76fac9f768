// What a report says in words.
#include "report/page.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "model/quantity.h"
#include "units.h"

namespace stagehand::cli {

namespace {

using model::format_bytes;

// Differences below this share are noise.
constexpr double noticeable = 0.02;

double copy_ms(const LoggedPlan& plan, std::uint64_t bytes) {
    return plan.link_bytes_per_second == 0
               ? 0
               : static_cast<double>(bytes) * 1e3 / static_cast<double>(plan.link_bytes_per_second);
}

bool is_link_bound(const LoggedPlan& plan) { return copy_ms(plan, plan.bytes_per_step) > plan.compute_ms; }

std::string link_text(const LoggedPlan& plan) {
    return model::format_rate(static_cast<double>(plan.link_bytes_per_second));
}

void tell_limit(const LoggedPlan& plan, Advice& advice) {
    if (plan.bytes_per_step == 0) {
        advice.course.emplace_back("A step copies nothing: all blocks of the order stay on the device.");
        return;
    }
    const std::string copies = fmt::format("A step copies {}, which takes {} at {}", format_bytes(plan.bytes_per_step),
                                           time_text(copy_ms(plan, plan.bytes_per_step)), link_text(plan));
    if (plan.compute_ms <= 0) {
        advice.course.push_back(copies + ". The plan knows of no computation, so that the step is link-bound.");
    } else if (is_link_bound(plan)) {
        advice.course.push_back(
            fmt::format("{}. The computation takes {}. The step is link-bound: the copies take "
                        "longer than the computation.",
                        copies, time_text(plan.compute_ms)));
    } else {
        advice.course.push_back(
            fmt::format("{}. The computation takes {}. The step is compute-bound: the copies fit "
                        "behind the computation.",
                        copies, time_text(plan.compute_ms)));
    }
}

void tell_waits(const RunFile& run, double step_ms, Advice& advice) {
    const double waits = median(later_steps(run, &LoggedStep::stall_ms));
    if (step_ms <= 0 || waits < noticeable * step_ms) {
        advice.course.push_back(
            fmt::format("The calling thread waited {} a step, which is not the problem.", time_text(waits)));
        return;
    }
    std::string why = "The telemetry holds no plan that would tell why.";
    if (run.plan) {
        why = run.plan->bytes_per_step == 0 ? "No planned copy explains them: blocks outside the order were loaded."
              : is_link_bound(*run.plan)
                  ? "They are link-bound: a larger budget or a faster link shortens them."
                  : "The copies fit behind the computation, so that a caller that is ahead of the device waits here "
                    "without loss. If the steps take longer than planned, the ring is small, or the source is slower "
                    "than the link.";
    }
    advice.course.push_back(fmt::format("Waits of {} a step ({} of the step), of the calling thread. {}",
                                        time_text(waits), share_text(waits, step_ms), why));
}

void tell_plan_and_step(const RunFile& run, double step_ms, Advice& advice) {
    const LoggedPlan& plan = *run.plan;
    if (plan.step_ms <= 0) return;
    if (step_ms > (1 + 5 * noticeable) * plan.step_ms) {
        const double copied = median(later_steps(run, &LoggedStep::ms)) > 0 && plan.bytes_per_step > 0
                                  ? static_cast<double>(plan.bytes_per_step) * 1e3 / step_ms
                                  : 0;
        advice.course.push_back(fmt::format(
            "The plan foresees {}, and the steps take {} as long.{} Either the source (files, or memory that is not "
            "pinned) is slower than the link, or the computation takes longer than planned, or other work uses the "
            "link.",
            time_text(plan.step_ms), ratio_text(step_ms, plan.step_ms),
            copied > 0 ? fmt::format(" The bytes came at {} on average, and the link has {}.",
                                     model::format_rate(copied), link_text(plan))
                       : ""));
    } else {
        advice.course.push_back(fmt::format(
            "The plan foresees {}: the steps take {} as long.{}", time_text(plan.step_ms),
            ratio_text(step_ms, plan.step_ms),
            step_ms < (1 - noticeable) * plan.step_ms
                ? " A step that ends on the host before the device has computed it looks shorter than it is. The link "
                  "may also be faster than measured."
                : ""));
    }
    if (plan.bound_ms > 0) {
        advice.course.push_back(
            fmt::format("No plan with this budget is faster than {} on this link; this plan takes "
                        "{} of this bound.",
                        time_text(plan.bound_ms), ratio_text(plan.step_ms, plan.bound_ms)));
    }
}

void tell_sets(const RunFile& run, Advice& advice) {
    const auto share = [](std::uint64_t part, std::uint64_t whole) {
        return share_text(static_cast<double>(part), static_cast<double>(whole));
    };
    for (const LoggedSet& set : run.sets) {
        if (set.uses == 0) continue;
        std::string sentence = fmt::format(
            "Set {}: {} of {} members have slots. {} of {} found their member in a slot, and {} made room for another.",
            set.name.empty() ? "without a name" : set.name, count_text(set.slots), count_text(set.members),
            share(set.hits, set.uses), counted(set.uses, "use"), counted(set.evictions, "member"));
        const auto rate = [&](std::size_t group) {
            return static_cast<double>(set.group_hits[group]) / static_cast<double>(set.group_uses[group]);
        };
        std::vector<std::size_t> used;
        for (std::size_t i = 0; i < set.group_uses.size(); ++i)
            if (set.group_uses[i] > 0) used.push_back(i);
        if (used.size() > 1) {
            const auto [least, most] =
                std::minmax_element(used.begin(), used.end(),
                                    [&](std::size_t left, std::size_t right) { return rate(left) < rate(right); });
            sentence += fmt::format(" By group: from {} (group {}) to {} (group {}).",
                                    share(set.group_hits[*least], set.group_uses[*least]), *least,
                                    share(set.group_hits[*most], set.group_uses[*most]), *most);
        }
        advice.course.push_back(sentence);
    }
}

void tell_troubles(const RunFile& run, Advice& advice) {
    std::uint64_t failed = 0;
    std::uint64_t cancelled = 0;
    std::uint64_t evictions = 0;
    for (const LoggedStep& step : run.steps) {
        failed += step.failed_loads;
        cancelled += step.cancelled_loads;
        evictions += step.evictions;
    }
    if (failed > 0)
        advice.course.push_back(fmt::format("{} failed. The library's log has the reasons.", counted(failed, "load")));
    if (cancelled > 0) {
        advice.course.push_back(fmt::format("{} given up, because the engine left the order of the plan.",
                                            cancelled == 1 ? "1 load was" : count_text(cancelled) + " loads were"));
    }
    if (evictions > 0) {
        advice.course.push_back(
            fmt::format("Contents of blocks outside the order were dropped for others {} times. "
                        "More memory for them (unordered_bytes) keeps more.",
                        count_text(evictions)));
    }
    if (run.plans > 1) {
        advice.course.push_back(
            fmt::format("The plan changed {} times. The picture and the figures of the plan are of the last one.",
                        count_text(run.plans - 1)));
    }
    if (run.plan && run.plan->orders > 1) {
        advice.course.push_back(
            fmt::format("The plan is for {} orders of blocks. Its figures are means over a step of each. Other budgets "
                        "are computed for the order of the last step alone.",
                        run.plan->orders));
    }
}

// The first budget above the present one that is at least as fast as `ms`.
const CurvePoint* budget_for(const Curve& curve, double ms) {
    for (const CurvePoint& point : curve.points)
        if (point.budget_bytes > curve.chosen.budget_bytes && point.step_ms <= ms) return &point;
    return nullptr;
}

std::string budget_sentence(const CurvePoint& from, const CurvePoint& to, const char* end) {
    return fmt::format("A budget of {} ({} more) would take the step from {} to {}{}", format_bytes(to.budget_bytes),
                       format_bytes(to.budget_bytes - from.budget_bytes), time_text(from.step_ms),
                       time_text(to.step_ms), end);
}

void suggest_budgets(const Curve& curve, Advice& advice) {
    const CurvePoint& now = curve.chosen;
    const double best = curve.points.back().step_ms;
    if (now.step_ms > (1 + noticeable) * best) {
        const CurvePoint* const next = budget_for(curve, 0.9 * now.step_ms);
        const CurvePoint* const least = budget_for(curve, (1 + noticeable) * best);
        if (next != nullptr && next != least) advice.changes.push_back(budget_sentence(now, *next, "."));
        if (least != nullptr)
            advice.changes.push_back(budget_sentence(now, *least, ". A larger budget gains nothing more."));
    } else {
        advice.changes.emplace_back(
            "A larger budget gains nothing: the step is as fast as with the whole model on the "
            "device.");
    }
    for (const CurvePoint& point : curve.points) {
        if (point.budget_bytes < now.budget_bytes && point.step_ms <= (1 + noticeable) * now.step_ms) {
            advice.changes.push_back(fmt::format(
                "A budget of {} ({} less) would do as well: the step takes {}.", format_bytes(point.budget_bytes),
                format_bytes(now.budget_bytes - point.budget_bytes), time_text(point.step_ms)));
            break;
        }
    }
}

void suggest_blocks(const LoggedPlan& plan, Advice& advice) {
    const auto largest =
        std::max_element(plan.blocks.begin(), plan.blocks.end(),
                         [](const LoggedBlock& left, const LoggedBlock& right) { return left.bytes < right.bytes; });
    if (largest == plan.blocks.end()) return;
    std::string sentence = fmt::format("The largest block, {}, has {}", largest->name, format_bytes(largest->bytes));
    if (plan.link_bytes_per_second > 0)
        sentence += fmt::format(". Copying it whole costs {}", time_text(copy_ms(plan, largest->bytes)));
    if (!plan.smallest_budget_block.empty() && plan.smallest_budget_bytes > 0) {
        sentence += plan.smallest_budget_block == largest->name
                        ? fmt::format(". It determines the smallest budget, {}: a split of the block lowers it",
                                      format_bytes(plan.smallest_budget_bytes))
                        : fmt::format(". The smallest budget, {}, is because of {}",
                                      format_bytes(plan.smallest_budget_bytes), plan.smallest_budget_block);
    }
    advice.changes.push_back(sentence + ".");
}

}  // namespace

Advice advice_of(const RunFile& run, const WhatIf& what_if) {
    Advice advice;
    const double step_ms = median(later_steps(run, &LoggedStep::ms));
    advice.headline = run.steps.size() > 1 ? fmt::format("A step takes {} (median of {} without the first).",
                                                         time_text(step_ms), counted(run.steps.size(), "step"))
                                           : fmt::format("The only step took {}.", time_text(step_ms));
    if (run.plan) {
        tell_limit(*run.plan, advice);
        tell_plan_and_step(run, step_ms, advice);
    }
    tell_waits(run, step_ms, advice);
    tell_sets(run, advice);
    tell_troubles(run, advice);
    if (!what_if.problem.empty()) advice.changes.push_back(what_if.problem);
    if (!what_if.curve.points.empty()) {
        suggest_budgets(what_if.curve, advice);
        const double now = what_if.curve.chosen.step_ms;
        if (what_if.faster_link_ms < (1 - noticeable) * now) {
            advice.changes.push_back(fmt::format("A link twice as fast would take the step from {} to {}.",
                                                 time_text(now), time_text(what_if.faster_link_ms)));
        } else {
            advice.changes.emplace_back("A faster link gains nothing.");
        }
    }
    if (run.plan) suggest_blocks(*run.plan, advice);
    return advice;
}

}  // namespace stagehand::cli
