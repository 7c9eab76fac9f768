// Sets and their members.
#include "api/descs.h"
#include "api/guard.h"
#include "base/flags.h"

using namespace stagehand;
using namespace stagehand::api;

namespace {

Status take_members(const uint32_t* members, uint64_t count, std::span<const uint32_t>* out) {
    if (count && !members) return Status(SH_ERROR_INVALID_ARGUMENT, "members is NULL");
    SH_TRY(check_count(count, "count"));
    *out = {members, count};
    return Status();
}

}  // namespace

extern "C" {

sh_status sh_set_create(sh_runtime* runtime, const sh_set_options* options, const sh_block_desc* members,
                        uint64_t count, sh_block* out_blocks, sh_set* out_set) {
    return guarded([&] {
        SH_TRY(check_struct(options, "options"));
        sh_set_options wanted;
        read_struct(options, &wanted);
        if (wanted.reserved) return Status(SH_ERROR_INVALID_ARGUMENT, "options.reserved is not 0");
        Descs taken;
        SH_TRY(taken.take(members, count, "members"));
        if (count && !out_blocks) return Status(SH_ERROR_INVALID_ARGUMENT, "out_blocks is NULL");
        if (!out_set) return Status(SH_ERROR_INVALID_ARGUMENT, "out_set is NULL");
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->blocks().add_set(wanted, taken.all, out_blocks, out_set, at.lock);
    });
}

sh_status sh_set_destroy(sh_runtime* runtime, sh_set set) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->blocks().remove_set(set, at.lock);
    });
}

sh_status sh_set_get_info(sh_runtime* runtime, sh_set set, sh_set_info* out_info) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return fill_struct(out_info, "out_info",
                           [&](sh_set_info* info) { return at.runtime->blocks().describe_set(set, info); });
    });
}

sh_status sh_acquire_members(sh_runtime* runtime, sh_set set, const uint32_t* members, uint64_t count, sh_stream stream,
                             uint32_t flags, sh_view* out_pool, uint32_t* out_slots) {
    return guarded([&] {
        std::span<const uint32_t> numbers;
        SH_TRY(take_members(members, count, &numbers));
        SH_TRY(check_flags("flags", flags, {SH_KNOWN(SH_ACQUIRE_NO_WAIT)}));
        SH_TRY(check_struct(out_pool, "out_pool"));
        if (count && !out_slots) return Status(SH_ERROR_INVALID_ARGUMENT, "out_slots is NULL");
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        Output<sh_view> pool(out_pool);
        Status status = at.runtime->acquire_members(set, numbers, at.runtime->name_of_stream(stream), flags, pool.get(),
                                                    out_slots, at.lock);
        if (status.code() == SH_OK) pool.give();
        return status;
    });
}

sh_status sh_release_members(sh_runtime* runtime, sh_set set, const uint32_t* members, uint64_t count,
                             sh_stream stream) {
    return guarded([&] {
        std::span<const uint32_t> numbers;
        SH_TRY(take_members(members, count, &numbers));
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->release_members(set, numbers, at.runtime->name_of_stream(stream), at.lock);
    });
}

sh_status sh_prefetch_members(sh_runtime* runtime, sh_set set, const uint32_t* members, const float* chances,
                              uint64_t count) {
    return guarded([&] {
        std::span<const uint32_t> numbers;
        SH_TRY(take_members(members, count, &numbers));
        std::span<const float> guesses;
        if (chances) guesses = {chances, count};
        for (size_t i = 0; i < guesses.size(); i++)
            if (!(guesses[i] >= 0 && guesses[i] <= 1))
                return Status(SH_ERROR_INVALID_ARGUMENT, "chances[" + std::to_string(i) + "] is not from 0 to 1");
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->prefetch_members(set, numbers, guesses, at.lock);
    });
}

}  // extern "C"
