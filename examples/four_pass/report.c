/* The report of a stage: a table of the models and of the device. */
#include "report.h"

#include <stdio.h>

const char* in_words(double bytes) {
    static const char* const units[] = {"B", "KB", "MB", "GB"};
    static char buffers[16][24];
    static unsigned next;
    char* const buffer = buffers[next++ % 16];
    unsigned unit = 0;

    for (; bytes >= 999.95 && unit < 3; unit++) bytes /= 1000;
    snprintf(buffer, sizeof buffers[0], unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return buffer;
}

bool report_begin(struct report* report, struct machine* machine, const struct loaded* loaded, struct error* error) {
    report->machine = machine;
    report->loaded = loaded;
    for (int i = 0; i < MODEL_COUNT; i++)
        if (!loaded_stats(&loaded[i], &report->before[i], error)) return false;
    return machine_now(machine, &report->began_ns, error);
}

static void print_model(const struct loaded* loaded, const sh_runtime_stats* before, const sh_runtime_stats* now) {
    printf("  %-18s %9s %9s %9s %9s %9s %9s %9s %9s %9s %7.1f\n", loaded->model->name, in_words((double)loaded->bytes),
           in_words((double)now->resident_bytes), in_words((double)now->ring_bytes), in_words((double)now->held_bytes),
           in_words((double)now->protected_bytes), in_words((double)now->reserved_bytes),
           in_words((double)now->guest_bytes), in_words((double)(now->bytes_to_device - before->bytes_to_device)),
           in_words((double)(now->given_up_bytes - before->given_up_bytes)),
           (double)(now->stall_ns - before->stall_ns) / 1e6);
}

bool report_end(const struct report* report, const char* title, uint64_t computed_ns, struct error* error) {
    uint64_t now_ns = 0;
    sh_memory_info memory;

    if (!machine_watch(report->machine, error) || !machine_now(report->machine, &now_ns, error) ||
        !machine_memory(report->machine, &memory, error))
        return false;
    printf("%s: %.1f ms, of which %.1f ms computing\n", title, (double)(now_ns - report->began_ns) / 1e6,
           (double)computed_ns / 1e6);
    printf("  %-18s %9s %9s %9s %9s %9s %9s %9s %9s %9s %7s\n", "", "weights", "resident", "ring", "held", "protected",
           "reserved", "guest", "copied", "given up", "stall/ms");
    for (int i = 0; i < MODEL_COUNT; i++) {
        sh_runtime_stats now;
        if (!loaded_stats(&report->loaded[i], &now, error)) return false;
        print_model(&report->loaded[i], &report->before[i], &now);
    }
    printf("  %-18s budget %s, held %s, at most %s; reserved %s, guests %s, headroom %s\n\n", "device",
           in_words((double)memory.budget_bytes), in_words((double)memory.used_bytes),
           in_words((double)memory.peak_bytes), in_words((double)memory.reserved_bytes),
           in_words((double)memory.guest_bytes), in_words((double)memory.headroom_bytes));
    return true;
}
