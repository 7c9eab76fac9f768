// `stagehand run`: streams a model through a budget and measures it.
//
// First a step loads the resident parts. The timed steps follow, as an engine runs them. With --verify there are as
// many steps again, in which each block is read back and compared while it is held. The timed steps do not compare,
// because copies of later blocks continue behind a comparison: subtracting its time would make the steps look faster
// than any link.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "block_table.h"
#include "block_verifier.h"
#include "copy_speed.h"
#include "expert_replay.h"
#include "expert_trace.h"
#include "interrupt.h"
#include "library.h"
#include "model/text.h"
#include "model_files.h"
#include "options.h"
#include "output_files.h"
#include "progress.h"
#include "run_report.h"
#include "streaming_session.h"
#include "terminal.h"
#include "units.h"

namespace stagehand::cli {

namespace {

// Records a trace of the process during its lifetime.
class Trace {
public:
    explicit Trace(const std::string& path) {
        if (!path.empty())
            check(sh_trace_start(path.c_str(), &scope_), fmt::format("--trace {}", model::printable(path)));
    }
    ~Trace() { sh_scope_end(scope_); }
    Trace(const Trace&) = delete;
    Trace& operator=(const Trace&) = delete;

    void stop() { check(sh_scope_end(std::exchange(scope_, nullptr)), "--trace"); }

private:
    sh_scope* scope_ = nullptr;
};

// The telemetry and the trace that a report is made of. Those that the user did not ask for are in a folder that the
// destructor removes. Created before the run, so that a mistake is reported at once.
class ReportFiles {
public:
    explicit ReportFiles(RunOptions& options) {
        if (options.report.empty()) return;
        check_reports_are_built();
        check_output(options.report);
        const char* const parent = std::getenv("TMPDIR");
        folder_ = fmt::format("{}/stagehand-report-XXXXXX", parent != nullptr && *parent != 0 ? parent : "/tmp");
        if (mkdtemp(folder_.data()) == nullptr) {
            const int error = errno;
            throw CommandError(ExitCode::output,
                               fmt::format("--report: {}: {}", model::printable(folder_), std::strerror(error)));
        }
        take(options.telemetry, "/run.jsonl");
        take(options.trace, "/trace.json");
    }
    ~ReportFiles() {
        if (!folder_.empty()) {
            std::error_code ignored;
            std::filesystem::remove_all(folder_, ignored);
        }
    }
    ReportFiles(const ReportFiles&) = delete;
    ReportFiles& operator=(const ReportFiles&) = delete;

private:
    static void check_output(const std::string& path) {
        std::FILE* const file = std::fopen(path.c_str(), "ae");
        if (file == nullptr) {
            throw CommandError(ExitCode::output,
                               fmt::format("--report {}: {}", model::printable(path), std::strerror(errno)));
        }
        std::fclose(file);
    }
    void take(std::string& path, const char* name) const {
        if (path.empty()) path = folder_ + name;
    }

    std::string folder_;
};

std::string opening_line(const RunReport& report, const BlockTable& table, const sh_memory_info& memory) {
    return fmt::format(
        "{}: {}\n{}: budget {} ({} of the model), pages of {}, copies at {}\n", report.model, description(table),
        report.device, model::format_bytes(report.budget_bytes),
        share_text(static_cast<double>(report.budget_bytes), static_cast<double>(table.model.total_bytes)),
        model::format_bytes(memory.page_bytes), model::format_rate(report.measured_bytes_per_second));
}

// Opens the device, measures its copies, and opens it again, so that the plan uses the speed that is reported, and the
// peak of device memory is the peak of the model alone. Fills in the facts about the device in `report`.
Device open_measured(const RunOptions& options, std::uint64_t budget, RunReport& report) {
    DeviceRequest request;
    request.name = options.device;
    request.backend_options = options.backend_options;
    request.budget_bytes = budget;
    Device device = open_device(request);
    const sh_device_caps caps = device_capabilities(device.get());
    report.device = caps.name;
    if (options.verify && (caps.flags & SH_DEVICE_VIRTUAL_TIME) != 0) {
        throw CommandError(
            ExitCode::usage,
            fmt::format("--verify: device {} is a simulation, whose blocks have no contents", report.device));
    }
    if (const std::optional<CopySpeed> speed = measure_copy_speed(device.get()))
        report.measured_bytes_per_second = speed->to_device_bytes_per_second;
    device.reset();
    request.name = report.device;
    request.helpers = options.helpers;
    request.link_bytes_per_second = static_cast<std::uint64_t>(report.measured_bytes_per_second);
    return open_device(request);
}

// The step before the timed steps: loads the resident parts, and fills the ring for the next step.
bool load(sh_device* device, StreamingSession& session, Progress& progress, RunReport& report) {
    progress.begin("loading", 1, session.uses());
    const std::uint64_t begin = device_clock_ns(device);
    const bool complete = session.step([&](std::size_t use, const StepUse&, sh_block) { progress.part(0, use); });
    report.load_ms = static_cast<double>(device_clock_ns(device) - begin) / 1e6;
    return complete;
}

// The timed steps. Each is timed from the end of the step before to its own end, which is the time per step of a
// program that streams for a long time. The ring is full before the first and after the last step, so that the bytes
// copied in between belong to these steps, whichever step began a load.
void time_steps(const RunOptions& options, sh_device* device, StreamingSession& session, ExpertReplay* experts,
                Progress& progress, RunReport& report) {
    progress.begin("streaming", options.steps, session.uses());
    check(sh_runtime_synchronize(session.runtime()), "loading");
    const sh_runtime_stats at_first = runtime_stats(session.runtime());
    sh_runtime_stats before = runtime_stats(session.runtime());
    std::uint64_t begin = device_clock_ns(device);
    for (std::uint64_t step = 0; step < options.steps; ++step) {
        const bool complete = session.step([&](std::size_t use, const StepUse&, sh_block) {
            progress.part(step, use);
            if (experts) experts->visit(step, use);
        });
        if (!complete) break;
        std::uint64_t end = device_clock_ns(device);
        if (step + 1 == options.steps) {
            check(sh_runtime_synchronize(session.runtime()), "streaming");
            // The first step begins with a full ring. Filling it again belongs to the step if no other step does that.
            end = step == 0 ? device_clock_ns(device) : end;
        }
        const sh_runtime_stats after = runtime_stats(session.runtime());
        StepMeasure measure;
        measure.ms = static_cast<double>(end - begin) / 1e6;
        measure.stall_ms = static_cast<double>(after.stall_ns - before.stall_ns) / 1e6;
        measure.hits = after.hits - before.hits;
        measure.in_time = after.in_time - before.in_time;
        measure.misses = after.misses - before.misses;
        report.steps.push_back(measure);
        report.bytes_copied = after.bytes_to_device - at_first.bytes_to_device;
        report.helped_bytes = after.helped_bytes - at_first.helped_bytes;
        progress.step(step, fmt::format("{}, {} copied", time_text(measure.ms),
                                        model::format_bytes(after.bytes_to_device - before.bytes_to_device)));
        before = after;
        begin = end;
    }
}

void stream(const RunOptions& options, sh_device* device, StreamingSession& session, ExpertReplay* experts,
            Trace& trace, Progress& progress, RunReport& report) {
    const auto tried = [&](sh_status status) {
        check(status, fmt::format("--telemetry {}", model::printable(options.telemetry)));
    };
    sh_scope* telemetry = nullptr;
    const auto start = [&] {
        if (!options.telemetry.empty())
            tried(sh_telemetry_start(session.runtime(), nullptr, options.telemetry.c_str(), &telemetry));
    };
    const auto stop = [&] { tried(sh_scope_end(std::exchange(telemetry, nullptr))); };
    // Started before anything is loaded, so that a mistake is reported at once. Started again after loading, so that
    // only timed steps have a line.
    start();
    if (load(device, session, progress, report)) {
        stop();
        start();
        time_steps(options, device, session, experts, progress, report);
    }
    stop();
    trace.stop();
}

void verify_steps(const BlockTable& table, const ModelFiles& files, sh_device* device, StreamingSession& session,
                  ExpertReplay* experts, Progress& progress, RunReport& report) {
    BlockVerifier verifier(device, table.blocks, files);
    const std::vector<model::Block> none;
    const std::vector<model::Block>& expert_blocks = experts ? report.experts->table.blocks : none;
    BlockVerifier expert_verifier(device, expert_blocks, files);
    const std::uint64_t steps = report.steps.size();
    progress.begin("verifying", steps, session.uses());
    // The result of a block's comparisons in this step; a block that is used twice counts once.
    enum class Seen : unsigned char { no, equal, different };
    for (std::uint64_t step = 0; step < steps && interrupted() == 0; ++step) {
        std::vector<Seen> seen(table.blocks.size(), Seen::no);
        std::uint64_t different = 0;
        const sh_stream stream = session.compute_stream().handle();
        const auto differs = [&](const std::string& name) {
            ++different;
            if (report.first_mismatch.empty())
                report.first_mismatch = fmt::format("block {} in step {}", name, step + 1);
        };
        const auto check_expert = [&](std::size_t expert, sh_block block) {
            ++report.verified_blocks;
            if (!expert_verifier.equal(session.runtime(), block, stream, expert)) differs(expert_blocks[expert].name);
        };
        session.step([&](std::size_t use, const StepUse& what, sh_block block) {
            progress.part(step, use);
            Seen& state = seen[what.block];
            const bool equal = verifier.equal(session.runtime(), block, stream, what.block);
            report.verified_blocks += state == Seen::no ? 1 : 0;
            if (!equal && state != Seen::different) differs(table.blocks[what.block].name);
            state = equal && state != Seen::different ? Seen::equal : Seen::different;
            if (experts) experts->visit(step, use, check_expert);
        });
        report.mismatched_blocks += different;
        progress.step(step, different == 0 ? fmt::format("{} equal", counted(table.blocks.size(), "block"))
                                           : fmt::format("{} differ", counted(different, "block")));
    }
}

// The plan's own figures, for the device as it is.
ExpertFigures planned_experts(const RunOptions& options, sh_device* device, const RunReport& report,
                              const ExpertTrace& trace) {
    const sh_device_caps caps = device_capabilities(device);
    PlanTarget target;
    target.device = caps.name;
    target.budget_bytes = report.budget_bytes;
    target.granularity_bytes = caps.granularity_bytes;
    target.page_bytes = device_memory(device).page_bytes;
    target.link_bytes_per_second = static_cast<std::uint64_t>(report.measured_bytes_per_second);
    return plan_experts(target, options, report.experts->table, trace);
}

// Plans and streams. `report` holds what was measured, also if a signal ended the run early.
void run(RunOptions& options, model::Model model, sh_device* device, RunReport& report) {
    const sh_memory_info memory = device_memory(device);
    report.budget_bytes = memory.budget_bytes;
    ExpertTrace trace_of_experts;
    BlockTable whole;
    if (options.experts.empty()) {
        whole = group(std::move(model), options, memory.budget_bytes);
    } else {
        report.experts.emplace(ExpertReport{read_experts(options, memory.budget_bytes), {}, {}});
        trace_of_experts = read_expert_trace(options.experts, report.experts->table);
        options.steps = trace_of_experts.tokens.size();
    }
    const BlockTable& table = report.experts ? report.experts->table.rest : whole;
    report.blocks = table.blocks.size();

    const ModelFiles files(table.model);
    StreamingSession session(device, table, files, options.order, options.compute_ms);
    std::optional<ExpertReplay> experts;
    if (report.experts) experts.emplace(session, report.experts->table, trace_of_experts);
    ExpertReplay* const replay = experts ? &*experts : nullptr;
    Trace trace(options.trace);
    report.plan = session.plan();
    report.model_bytes = report.experts ? table.block_bytes : report.plan.model_bytes;
    // With helpers, the bound counts with all links.
    if (report.measured_bytes_per_second <= 0 || !options.helpers.empty())
        report.measured_bytes_per_second = static_cast<double>(report.plan.link_bytes_per_second);
    if (!options.json && !options.quiet) {
        print(legible(terminal_of(stdout), opening_line(report, table, memory)));
        finish_output();
    }

    Progress progress(options.quiet  ? ProgressStyle::quiet
                      : options.json ? ProgressStyle::bar_only
                                     : ProgressStyle::automatic);
    stream(options, device, session, replay, trace, progress, report);
    if (report.experts) {
        ExpertFigures& measured = report.experts->measured.emplace(experts->figures());
        measured.tokens = report.steps.size();
        for (const StepMeasure& step : report.steps) measured.ms += step.ms;
        measured.bytes_copied = report.bytes_copied;
    }
    if (options.verify) verify_steps(table, files, device, session, replay, progress, report);
    report.peak_device_bytes = device_memory(device).peak_bytes;
    report.signal = interrupted();
    if (report.experts) report.experts->planned = planned_experts(options, device, report, trace_of_experts);
    if (report.mismatched_blocks > 0 && files.changed())
        report.first_mismatch += "; the file has been changed since it was opened";
}

}  // namespace

int run_command(const RunOptions& given) {
    catch_interrupts();
    RunOptions options = given;
    const ReportFiles files(options);
    RunReport report;
    report.order = options.order;
    report.compute_ms = options.compute_ms;
    report.verify = options.verify;
    report.model = model_name(options.model);

    model::Model model = read_model(options);
    check_outputs({{"--trace ", options.trace}, {"--telemetry ", options.telemetry}, {"--report ", options.report}},
                  inputs_of(options.model, model));
    const Device device = open_measured(options, budget_bytes(options, model), report);
    run(options, std::move(model), device.get(), report);

    print(options.json ? json_text(report) : table_text(report, terminal_of(stdout)));
    finish_output();
    if (!options.report.empty()) {
        if (report.steps.empty()) {
            throw CommandError(ExitCode::failure, fmt::format("--report {}: no timed step was completed",
                                                              model::printable(options.report)));
        }
        report_command(
            {{options.telemetry, options.trace}, options.report, report.model, options.quiet || options.json});
    }
    if (report.mismatched_blocks > 0) {
        throw CommandError(
            ExitCode::failure,
            fmt::format("verification: {} of {} blocks on the device differ from the file, the first: {}",
                        report.mismatched_blocks, report.verified_blocks, report.first_mismatch));
    }
    return report.signal != 0 ? static_cast<int>(ExitCode::signalled) + report.signal : 0;
}

}  // namespace stagehand::cli
