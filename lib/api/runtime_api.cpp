// Runtimes, blocks, order and plan.
#include "api/descs.h"
#include "api/guard.h"
#include "base/flags.h"
#include "base/no_throw.h"
#include "core/device/device_options.h"

using namespace stagehand;
using namespace stagehand::api;

extern "C" {

sh_status sh_runtime_create(sh_device* device, const sh_runtime_options* options, sh_runtime** out_runtime) {
    return guarded([&] {
        std::shared_ptr<core::Device> found;
        SH_TRY(find_device(device, &found));
        if (!out_runtime) return Status(SH_ERROR_INVALID_ARGUMENT, "out_runtime is NULL");
        sh_runtime_options wanted;
        SH_TRY(take_options(options, "options", &wanted));
        Runtimes::Reservation slot(runtimes());
        std::shared_ptr<core::Runtime> runtime;
        SH_TRY(core::Runtime::create(std::move(found), wanted, slot.mutex(), &runtime));
        *out_runtime = static_cast<sh_runtime*>(slot.publish(std::move(runtime)));
        return Status();
    });
}

void sh_runtime_destroy(sh_runtime* runtime) {
    (void)guarded([&] {
        if (!runtime) return Status();
        core::Lock lock;
        auto* slot = runtimes().lock(runtime, &lock);
        if (!slot) return unknown_runtime();
        // The handle is stale from here on for everybody else; calls that are inside leave first.
        std::shared_ptr<core::Runtime> closing = runtimes().remove(*slot);
        Status status = no_throw([&] { return closing->close(lock); });
        if (lock.owns_lock()) lock.unlock();
        closing.reset();
        runtimes().recycle(*slot);
        return status;
    });
}

sh_status sh_runtime_synchronize(sh_runtime* runtime) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->synchronize(at.lock);
    });
}

sh_status sh_register_blocks(sh_runtime* runtime, const sh_block_desc* descs, uint64_t count, sh_block* out_blocks) {
    return guarded([&] {
        Descs taken;
        SH_TRY(taken.take(descs, count, "descs"));
        if (count && !out_blocks) return Status(SH_ERROR_INVALID_ARGUMENT, "out_blocks is NULL");
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->blocks().add(taken.all, out_blocks, at.lock);
    });
}

sh_status sh_register_parts(sh_runtime* runtime, const sh_block_desc* desc, const sh_part_options* options,
                            sh_part* out_parts, uint64_t capacity, uint64_t* out_count) {
    return guarded([&] {
        SH_TRY(check_struct(desc, "desc"));
        SH_TRY(check_struct(options, "options"));
        sh_block_desc block;
        sh_part_options wanted;
        std::vector<sh_segment> segments;
        read_struct(desc, &block);
        read_struct(options, &wanted);
        SH_TRY(take_segments(&block, &segments));
        if (wanted.reserved) return Status(SH_ERROR_INVALID_ARGUMENT, "options.reserved is not 0");
        if (wanted.unit_bytes == 0) return Status(SH_ERROR_INVALID_ARGUMENT, "options.unit_bytes is 0");
        if (capacity == 0) return Status(SH_ERROR_INVALID_ARGUMENT, "capacity is 0: there is at least one part");
        if (!out_count) return Status(SH_ERROR_INVALID_ARGUMENT, "out_count is NULL");
        OutputArray<sh_part> parts;
        SH_TRY(parts.open(out_parts, capacity, {"out_parts", "capacity"}));
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        uint64_t made = 0;
        SH_TRY(at.runtime->blocks().add_parts(block, wanted, parts.get(), &made, at.lock));
        parts.give(made);
        *out_count = made;
        return Status();
    });
}

sh_status sh_unregister_blocks(sh_runtime* runtime, const sh_block* blocks, uint64_t count) {
    return guarded([&] {
        LockedRuntime at;
        std::span<const sh_block> ids;
        SH_TRY(find_runtime(runtime, &at));
        SH_TRY(take_blocks(blocks, count, &ids));
        return at.runtime->blocks().remove(ids, at.lock);
    });
}

sh_status sh_block_get_state(sh_runtime* runtime, sh_block block, sh_block_state* out_state) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return fill_struct(out_state, "out_state",
                           [&](sh_block_state* state) { return at.runtime->blocks().describe(block, state); });
    });
}

sh_status sh_invalidate_blocks(sh_runtime* runtime, const sh_block* blocks, uint64_t count) {
    return guarded([&] {
        LockedRuntime at;
        std::span<const sh_block> ids;
        SH_TRY(find_runtime(runtime, &at));
        SH_TRY(take_blocks(blocks, count, &ids));
        return at.runtime->sources().invalidate(ids);
    });
}

sh_status sh_source_update_begin(sh_runtime* runtime, const sh_block* blocks, uint64_t count) {
    return guarded([&] {
        LockedRuntime at;
        std::span<const sh_block> ids;
        SH_TRY(find_runtime(runtime, &at));
        SH_TRY(take_blocks(blocks, count, &ids));
        return at.runtime->sources().update_begin(ids, at.lock);
    });
}

sh_status sh_source_replace(sh_runtime* runtime, sh_block block, const sh_segment* segments, uint64_t count) {
    return guarded([&] {
        std::vector<sh_segment> taken;
        SH_TRY(take_segments(segments, count, {"segments"}, &taken));
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->blocks().replace_sources(block, taken, at.lock);
    });
}

sh_status sh_source_update_end(sh_runtime* runtime, const sh_block* blocks, uint64_t count) {
    return guarded([&] {
        LockedRuntime at;
        std::span<const sh_block> ids;
        SH_TRY(find_runtime(runtime, &at));
        SH_TRY(take_blocks(blocks, count, &ids));
        return at.runtime->sources().update_end(ids);
    });
}

sh_status sh_mark_dirty(sh_runtime* runtime, sh_block block) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->sources().mark_dirty(block);
    });
}

sh_status sh_write_back(sh_runtime* runtime, const sh_block* blocks, uint64_t count) {
    return guarded([&] {
        LockedRuntime at;
        std::span<const sh_block> ids;
        SH_TRY(find_runtime(runtime, &at));
        if (!blocks && !count) return at.runtime->sources().write_back_all(at.lock);
        SH_TRY(take_blocks(blocks, count, &ids));
        return at.runtime->sources().write_back(ids, at.lock);
    });
}

sh_status sh_set_schedule(sh_runtime* runtime, const sh_use* uses, uint64_t count) {
    return guarded([&] {
        std::vector<sh_use> all;
        SH_TRY(take_array(uses, count, {"uses"}, &all));
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->steps().set_schedule(all);
    });
}

sh_status sh_plan(sh_runtime* runtime, const sh_plan_options* options, sh_plan_info* out_info) {
    return guarded([&] {
        sh_plan_options wanted;
        SH_TRY(take_options(options, "options", &wanted));
        SH_TRY(check_flags("options.flags", wanted.flags, {SH_KNOWN(SH_PLAN_DRY_RUN), SH_KNOWN(SH_PLAN_DROP_GRAPHS)}));
        if (wanted.flags & SH_PLAN_DRY_RUN) SH_TRY(core::check_link_speed(wanted.link_bytes_per_second));
        if (out_info) SH_TRY(check_struct(out_info, "out_info"));
        Output<sh_plan_info> info(out_info);
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        SH_TRY(at.runtime->plan(wanted, info.get(), at.lock));
        info.give();
        return Status();
    });
}

}  // extern "C"
