#include "run_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "json_output.h"
#include "median.h"
#include "model/quantity.h"
#include "table.h"
#include "units.h"

namespace stagehand::cli {

namespace {

void add_verification(Facts& facts, const RunReport& report) {
    const std::uint64_t experts = report.experts ? report.experts->measured->all().uses : 0;
    const std::uint64_t wanted = report.blocks * report.steps.size() + experts;
    if (report.mismatched_blocks > 0) {
        facts.add("verified", fmt::format("{} differ", count_text(report.mismatched_blocks)),
                  fmt::format("of {} block checks", count_text(report.verified_blocks)), Ink::bad);
    } else if (report.verified_blocks < wanted) {
        facts.add("verified", fmt::format("{} equal", count_text(report.verified_blocks)),
                  fmt::format("of {} block checks, then interrupted", count_text(wanted)));
    } else {
        facts.add("verified", "all equal",
                  fmt::format("{} x {}{}", counted(report.blocks, "block"), counted(report.steps.size(), "step"),
                              experts > 0 ? fmt::format(", and {}", counted(experts, "expert")) : ""),
                  Ink::good);
    }
}

}  // namespace

double RunReport::median_of(double StepMeasure::*member) const {
    std::vector<double> values;
    for (const StepMeasure& step : steps) values.push_back(step.*member);
    if (values.size() > 1) values.erase(values.begin());
    return median(std::move(values));
}

std::uint64_t RunReport::sum(std::uint64_t StepMeasure::*member) const {
    std::uint64_t sum = 0;
    for (const StepMeasure& step : steps) sum += step.*member;
    return sum;
}

double RunReport::steps_bytes_per_second() const {
    const double ms = step_ms();
    const bool refilled = steps.size() > 1 || signal == 0;
    return refilled && ms > 0 ? static_cast<double>(std::max(bytes_per_step(), excess_bytes())) * 1e3 / ms : 0;
}

double RunReport::copy_bytes_per_second() const {
    // The steps tell no speed of the link if it carries packed weights, or if some of them stay.
    const bool tells = excess_bytes() > 0 && !plan.unpack_bytes;
    return std::max(measured_bytes_per_second, tells ? steps_bytes_per_second() : 0);
}

double RunReport::bound_ms() const {
    if (plan.unpack_bytes) return static_cast<double>(plan.bound_ns) / 1e6;
    const double speed = copy_bytes_per_second();
    return std::max(compute_ms, speed > 0 ? static_cast<double>(excess_bytes()) * 1e3 / speed : 0);
}

std::string json_text(const RunReport& report) {
    Json json = {
        {"model", report.model},
        {"device", report.device},
        {"order", to_string(report.order)},
        {"steps", report.steps.size()},
        {"step_ms", report.step_ms()},
        {"load_ms", report.load_ms},
        {"bound_ms", report.bound_ms()},
        {"planned_step_ms", static_cast<double>(report.plan.step_ns) / 1e6},
        {"compute_ms", report.compute_ms},
        {"copy_bytes_per_second", report.copy_bytes_per_second()},
        {"measured_bytes_per_second", report.measured_bytes_per_second},
        {"model_bytes", report.model_bytes},
        {"bytes_per_step", report.bytes_per_step()},
        {"bound_bytes_per_step", report.plan.bound_bytes_per_step},
        {"budget_bytes", report.budget_bytes},
        {"peak_device_bytes", report.peak_device_bytes},
        {"resident_bytes", report.plan.resident_bytes},
        {"ring_bytes", report.plan.ring_bytes},
        {"packed_resident_bytes", report.plan.packed_resident_bytes},
        {"helped_bytes_per_step", report.helped_bytes_per_step()},
        {"blocks", report.blocks},
        {"resident_blocks", report.plan.resident_blocks},
        {"streamed_blocks", report.plan.streamed_blocks},
        {"hits", report.sum(&StepMeasure::hits)},
        {"in_time", report.sum(&StepMeasure::in_time)},
        {"misses", report.sum(&StepMeasure::misses)},
        {"stall_ms", report.stall_ms()},
        {"verified_blocks", report.verified_blocks},
        {"mismatched_blocks", report.mismatched_blocks},
        {"interrupted", report.signal != 0},
    };
    if (report.experts) json["experts"] = experts_json(*report.experts);
    return to_text(json);
}

std::string table_text(const RunReport& report, const Terminal& terminal) {
    const auto bytes = [](std::uint64_t count) { return model::format_bytes(count); };
    const std::uint64_t excess = report.excess_bytes();
    Facts facts;
    facts.add("steps", count_text(report.steps.size()), report.signal != 0 ? "interrupted" : "");
    facts.add(
        "step time", time_text(report.step_ms()),
        fmt::format("median; the step before, which loads the resident parts, took {}", time_text(report.load_ms)));
    const std::string copying =
        excess == 0 ? "nothing to copy"
                    : fmt::format("({} − {}) / {}", bytes(report.model_bytes), bytes(report.plan.budget_bytes),
                                  model::format_rate(report.copy_bytes_per_second()));
    std::string bound = fmt::format("max(compute {}, {})", time_text(report.compute_ms), copying);
    if (excess > 0) {
        bound += report.faster_in_steps() ? ", at the speed of the link in the steps"
                                          : ", at the measured speed of the link";
    }
    if (report.bound_ms() > 0)
        bound += fmt::format(": the step time is {}", ratio_text(report.step_ms(), report.bound_ms()));
    facts.add("bound", time_text(report.bound_ms()), bound);
    if (report.faster_in_steps()) {
        facts.add("", "",
                  fmt::format("The link was faster in the steps than before them, when {} were measured.",
                              model::format_rate(report.measured_bytes_per_second)));
    }
    if (!report.steps.empty() && is_below(report.step_ms(), report.bound_ms()))
        facts.add("", "", "The only step began with a full ring, so it is shorter than one of many steps can be.");
    if (excess == 0) {
        facts.add("copied a step", bytes(report.bytes_per_step()),
                  report.experts ? "all but experts is resident" : "the whole model is resident");
    } else {
        facts.add("copied a step", bytes(report.bytes_per_step()),
                  report.plan.unpack_bytes
                      ? std::string("packed")
                      : fmt::format("no plan copies less than {}", bytes(report.plan.bound_bytes_per_step)));
    }
    facts.add(
        "device bytes", bytes(report.peak_device_bytes),
        fmt::format("at the peak, {} of the budget of {}",
                    share_text(static_cast<double>(report.peak_device_bytes), static_cast<double>(report.budget_bytes)),
                    bytes(report.budget_bytes)));
    const std::uint64_t packed = report.plan.packed_resident_bytes;
    facts.add("plan",
              fmt::format("{} resident{}", bytes(report.plan.resident_bytes),
                          packed ? fmt::format(", and {} packed", bytes(packed)) : ""),
              report.plan.streamed_blocks == 0
                  ? "nothing is streamed"
                  : fmt::format("{} streamed in part or whole through a ring of {}",
                                counted(report.plan.streamed_blocks, "block"), bytes(report.plan.ring_bytes)));
    facts.add("hits", count_text(report.sum(&StepMeasure::hits)),
              fmt::format("of {}; {} of the hits in time",
                          counted(report.sum(&StepMeasure::hits) + report.sum(&StepMeasure::misses), "acquire"),
                          count_text(report.sum(&StepMeasure::in_time))));
    facts.add("stalls", time_text(report.stall_ms()), "per step, of the calling thread");
    if (report.verify) add_verification(facts, report);
    return facts.text(terminal) + (report.experts ? "\n" + experts_text(*report.experts, terminal) : "");
}

}  // namespace stagehand::cli
