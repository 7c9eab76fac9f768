// Protection, reservations, guests, trimming and pressure.
#include "api/guard.h"
#include "api/scopes.h"
#include "base/flags.h"

using namespace stagehand;
using namespace stagehand::api;

extern "C" {

sh_status sh_protect_blocks(sh_runtime* runtime, const sh_block* blocks, uint64_t count, sh_scope** out_scope) {
    return guarded([&] {
        std::span<const sh_block> ids;
        SH_TRY(take_blocks(blocks, count, &ids));
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        const auto end = [some = std::vector(ids.begin(), ids.end())](LockedRuntime& in) {
            in.runtime->residency().unprotect(some);
            return Status();
        };
        return open_scope(out_scope, in_runtime(runtime, end), [&] { return at.runtime->residency().protect(ids); });
    });
}

sh_status sh_keep_resident(sh_runtime* runtime, sh_scope** out_scope) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        const auto end = [](LockedRuntime& in) {
            in.runtime->residency().keep_end();
            return Status();
        };
        return open_scope(out_scope, in_runtime(runtime, end), [&] {
            at.runtime->residency().keep_begin();
            return Status();
        });
    });
}

sh_status sh_reserve(sh_runtime* runtime, uint64_t bytes, uint32_t priority, sh_scope** out_scope) {
    return guarded([&] {
        if (priority != SH_PRIORITY_PRIMARY && priority != SH_PRIORITY_SECONDARY)
            return Status(SH_ERROR_INVALID_ARGUMENT,
                          "priority " + std::to_string(priority) + " is not one of SH_PRIORITY_*");
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        const auto number = std::make_shared<uint64_t>(0);
        const auto end = [number](LockedRuntime& in) {
            in.runtime->residency().release_reservation(*number);
            return Status();
        };
        return open_scope(out_scope, in_runtime(runtime, end), [&] {
            const auto wanted =
                priority == SH_PRIORITY_PRIMARY ? policy::Priority::primary : policy::Priority::secondary;
            return at.runtime->residency().reserve(bytes, wanted, at.lock, number.get());
        });
    });
}

sh_status sh_guest_begin(sh_runtime* guest, const sh_guest_options* options, sh_scope** out_scope) {
    return guarded([&] {
        sh_guest_options wanted;
        SH_TRY(take_options(options, "options", &wanted));
        SH_TRY(check_flags("options.flags", wanted.flags, {SH_KNOWN(SH_GUEST_SHRINK)}));
        if (!out_scope) return Status(SH_ERROR_INVALID_ARGUMENT, "out_scope is NULL");
        LockedRuntime at;
        SH_TRY(find_runtime(guest, &at));
        const auto end = [](LockedRuntime& in) { return in.runtime->residency().guest_end(in.lock); };
        return open_scope(out_scope, in_runtime(guest, end),
                          [&] { return at.runtime->residency().guest_begin(wanted, at.lock); });
    });
}

sh_status sh_trim(sh_runtime* runtime, uint64_t keep_bytes, uint64_t* out_bytes) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->residency().trim(keep_bytes, out_bytes, at.lock);
    });
}

sh_status sh_set_pressure(sh_runtime* runtime, sh_pressure_fn pressure, void* user_data) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->set_pressure(runtime, pressure, user_data, at.lock);
    });
}

}  // extern "C"
