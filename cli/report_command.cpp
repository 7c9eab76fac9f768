// `stagehand report`: one HTML page about one run or several, from their telemetry and traces.
#include <utility>

#include <fmt/format.h>

#include "exit_code.h"
#include "model/text.h"
#include "options.h"
#include "output_files.h"
#include "progress.h"
#include "report/page.h"

namespace stagehand::cli {

namespace {

// A trace belongs to the telemetry before it.
std::vector<ReportedRun> read_runs(const std::vector<std::string>& files) {
    std::vector<ReportedRun> runs;
    for (const std::string& file : files) {
        if (!is_trace(file)) {
            runs.emplace_back().run = read_run_file(file);
            continue;
        }
        const std::string name = model::printable(file);
        if (runs.empty()) {
            throw CommandError(ExitCode::usage,
                               fmt::format("{} is a trace; give it behind the telemetry of its run", name));
        }
        if (runs.back().trace) {
            throw CommandError(ExitCode::usage, fmt::format("{} is a second trace of {}; a run has one", name,
                                                            model::printable(runs.back().run.path)));
        }
        runs.back().trace = read_trace_file(file, runs.back().run);
    }
    // Files of the same name are told apart by their paths.
    for (std::size_t i = 0; i < runs.size(); ++i) {
        for (std::size_t k = i + 1; k < runs.size(); ++k) {
            if (runs[i].run.label == runs[k].run.label) {
                runs[i].run.label = runs[i].run.path;
                runs[k].run.label = runs[k].run.path;
            }
        }
    }
    return runs;
}

}  // namespace

void check_reports_are_built() {
    if (plotting_script.empty()) {
        throw CommandError(ExitCode::failure,
                           "this command was built without reports, because D3 was not found (Debian: libjs-d3)");
    }
}

int report_command(const ReportOptions& options) {
    check_reports_are_built();
    check_outputs({{"", options.output}}, options.files);
    std::vector<ReportedRun> runs = read_runs(options.files);
    if (!options.label.empty()) runs.front().run.label = options.label;
    Progress progress(options.quiet ? ProgressStyle::quiet : ProgressStyle::bar_only);
    progress.begin("planning", runs.size(), 1);
    for (std::size_t i = 0; i < runs.size(); ++i) {
        runs[i].what_if = ask_what_if(runs[i].run);
        runs[i].advice = advice_of(runs[i].run, runs[i].what_if);
        progress.step(i, runs[i].run.label);
    }
    write_file({"", options.output}, report_page(runs));
    return 0;
}

}  // namespace stagehand::cli
