/* The options of the command line. */
#include "options.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

const char usage[] =
    "usage: four_pass [options]\n"
    "\n"
    "Plays a video pipeline of four models on one device: text encoding, base generation, spatial and "
    "temporal\n"
    "upscaling. The computing is left out: a stream is busy for the time that it would take.\n"
    "\n"
    "  --device NAME   sim, host, cuda:0, ... (default sim: virtual time, no contents)\n"
    "  --budget SIZE   ceiling on device memory (default 23GiB: 24 GiB minus 1 GiB for everything else)\n"
    "  --link RATE     speed of the link, for sim and host only, e.g. 25GB/s (default sim 25GB/s, host none)\n"
    "  --tflops N      speed of computing, in 10^12 operations per second (default 100)\n"
    "  --prompts N     number of prompts to encode (default 3)\n"
    "  --steps N       number of denoising steps (default 8)\n"
    "  --scale S       factor for sizes, budget and work, e.g. 1/1024 (default 1)\n"
    "  --verify        compare every byte that a stage uses; not on sim\n"
    "  --trace FILE    write a timeline for Perfetto\n"
    "  --help          this text\n";

struct unit {
    const char* name;
    double value;
};

/** Parses a positive number and a unit of the list. The list ends with an entry without a name. */
static bool parse_quantity(const char* text, const struct unit* units, double* out) {
    char* end = NULL;
    const double value = strtod(text, &end);

    if (end == text || !(value > 0) || value > 1e18) return false;
    for (; units->name != NULL; units++) {
        if (strcmp(end, units->name) != 0) continue;
        *out = value * units->value;
        return true;
    }
    return false;
}

static bool parse_size(const char* text, double* out) {
    static const struct unit units[] = {{"", 1},          {"KB", 1e3}, {"KiB", 1024},       {"MB", 1e6},
                                        {"MiB", 1048576}, {"GB", 1e9}, {"GiB", 1073741824}, {NULL, 0}};
    return parse_quantity(text, units, out);
}

static bool parse_rate(const char* text, double* out) {
    static const struct unit units[] = {{"", 1}, {"MB/s", 1e6}, {"GB/s", 1e9}, {NULL, 0}};
    return parse_quantity(text, units, out);
}

static bool parse_tera(const char* text, double* out) {
    static const struct unit units[] = {{"", 1e12}, {NULL, 0}};
    return parse_quantity(text, units, out);
}

/** Parses "0.5" or "1/1024". The value is at most 1. */
static bool parse_scale(const char* text, double* out) {
    char* end = NULL;
    double value = strtod(text, &end);

    if (end == text) return false;
    if (*end == '/') {
        const char* const divisor = end + 1;
        value /= strtod(divisor, &end);
        if (end == divisor) return false;
    }
    *out = value;
    return *end == '\0' && value >= 1e-6 && value <= 1;
}

static bool parse_count(const char* text, unsigned* out) {
    char* end = NULL;
    const long value = strtol(text, &end, 10);

    if (end == text || *end != '\0' || value < 1 || value > 10000) return false;
    *out = (unsigned)value;
    return true;
}

static bool parse_value(int option, const char* text, struct options* out) {
    switch (option) {
        case 'd':
            out->device = text;
            return *text != '\0';
        case 'b':
            return parse_size(text, &out->budget_bytes);
        case 'l':
            return parse_rate(text, &out->link_bytes_per_second);
        case 'f':
            return parse_tera(text, &out->operations_per_second);
        case 'p':
            return parse_count(text, &out->prompts);
        case 's':
            return parse_count(text, &out->steps);
        case 'c':
            return parse_scale(text, &out->scale);
        case 't':
            out->trace = text;
            return *text != '\0';
        case 'v':
            return out->verify = true;
        default:
            return out->help = true;
    }
}

bool parse_options(int argc, char** argv, struct options* out, struct error* error) {
    static const struct option known[] = {
        {"device", required_argument, NULL, 'd'},
        {"budget", required_argument, NULL, 'b'},
        {"link", required_argument, NULL, 'l'},
        {"tflops", required_argument, NULL, 'f'},
        {"prompts", required_argument, NULL, 'p'},
        {"steps", required_argument, NULL, 's'},
        {"scale", required_argument, NULL, 'c'},
        {"trace", required_argument, NULL, 't'},
        {"verify", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int option = 0, index = 0;

    *out = (struct options){.device = "sim",
                            .budget_bytes = 23 * 1073741824.0,
                            .operations_per_second = 100e12,
                            .scale = 1,
                            .prompts = 3,
                            .steps = 8};
    opterr = 0;
    while ((option = getopt_long(argc, argv, "", known, &index)) != -1) {
        if (option == '?')
            return error_set(error, "%s: unknown option, or its value is missing or not allowed; see --help",
                             argv[optind - 1]);
        if (!parse_value(option, optarg, out))
            return error_set(error, "--%s %s: not a valid value; see --help", known[index].name, optarg);
    }
    if (optind < argc) return error_set(error, "%s: four_pass takes no arguments; see --help", argv[optind]);
    return true;
}
