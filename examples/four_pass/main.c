/* The command line: runs the pipeline and reports whether its promises were kept. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "pipeline.h"

enum { EXIT_USAGE = 2 };

static bool play(struct pipeline* pipeline, const struct options* options, struct error* error) {
    return pipeline_open(pipeline, options, error) && pipeline_run(pipeline, error);
}

static bool run(const struct options* options, struct error* error) {
    struct pipeline pipeline = {0};
    sh_scope* trace = NULL;

    if (options->trace != NULL && !succeeded(sh_trace_start(options->trace, &trace), options->trace, error))
        return false;
    bool ok = play(&pipeline, options, error);
    pipeline_close(&pipeline);
    /* The trace is stopped after a failure too, because it shows what led to the failure. */
    ok = succeeded(sh_scope_end(trace), options->trace, ok ? error : &(struct error){""}) && ok;
    if (!ok) return false;
    if (!promises_print(&pipeline.promises)) ok = error_set(error, "a promise was broken");
    if (fflush(stdout) != 0) ok = error_set(error, "standard output: %s", strerror(errno));
    return ok;
}

int main(int argc, char** argv) {
    struct options options;
    struct error error;

    if (!parse_options(argc, argv, &options, &error)) {
        fprintf(stderr, "four_pass: %s\n", error.text);
        return EXIT_USAGE;
    }
    if (options.help) {
        fputs(usage, stdout);
        return EXIT_SUCCESS;
    }
    if (run(&options, &error)) return EXIT_SUCCESS;
    fflush(stdout);
    fprintf(stderr, "four_pass: %s\n", error.text);
    return EXIT_FAILURE;
}
