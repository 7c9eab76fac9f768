// The calls of a step.
#include <algorithm>
#include <cstring>

#include "api/guard.h"
#include "base/flags.h"

using namespace stagehand;
using namespace stagehand::api;

namespace {

Status check_acquire(uint32_t flags) { return check_flags("flags", flags, {SH_KNOWN(SH_ACQUIRE_NO_WAIT)}); }

}  // namespace

extern "C" {

sh_status sh_step_begin(sh_runtime* runtime, const char* kind) {
    return guarded([&] {
        if (kind && (!*kind || std::strlen(kind) >= sizeof(sh_kind_info::name)))
            return Status(SH_ERROR_INVALID_ARGUMENT,
                          "kind is " + (*kind ? "longer than " + std::to_string(sizeof(sh_kind_info::name) - 1) +
                                                    " bytes: \"" + kind + "\""
                                              : std::string("empty: NULL means that the step has no name")));
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->step_begin(kind, at.lock);
    });
}

sh_status sh_kind_list(sh_runtime* runtime, sh_kind_info* infos, uint64_t capacity, uint64_t* out_count) {
    return guarded([&] {
        if (!out_count) return Status(SH_ERROR_INVALID_ARGUMENT, "out_count is NULL");
        OutputArray<sh_kind_info> to;
        SH_TRY(to.open(infos, capacity, {"infos", "capacity"}));
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        *out_count = at.runtime->figures().list_kinds(to.get());
        to.give(std::min<uint64_t>(capacity, *out_count));
        return Status();
    });
}

sh_status sh_step_end(sh_runtime* runtime) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->step_end(at.lock);
    });
}

sh_status sh_acquire(sh_runtime* runtime, sh_block block, sh_stream stream, uint32_t flags, sh_view* out_view) {
    if (out_view && flags <= SH_ACQUIRE_NO_WAIT && is_known_size<sh_view>(out_view->struct_size)) [[likely]] {
        Output<sh_view> view(out_view);
        if (shortcut(runtime, [&](core::Runtime& at) { return at.acquire_ready(block, view.get()); })) {
            view.give();
            return SH_OK;
        }
    }
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(check_acquire(flags));
        SH_TRY(check_struct(out_view, "out_view"));
        SH_TRY(find_runtime(runtime, &at));
        Output<sh_view> view(out_view);
        Status status = at.runtime->acquire(block, at.runtime->name_of_stream(stream), flags, view.get(), at.lock);
        if (status.code() == SH_OK) view.give();
        return status;
    });
}

sh_status sh_acquire_many(sh_runtime* runtime, const sh_block* blocks, uint64_t count, sh_stream stream, uint32_t flags,
                          sh_view* out_views) {
    return guarded([&] {
        std::span<const sh_block> ids;
        SH_TRY(take_blocks(blocks, count, &ids));
        SH_TRY(check_acquire(flags));
        OutputArray<sh_view> views;
        SH_TRY(views.open(out_views, count, {"out_views"}));
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        Status status = at.runtime->acquire_many(ids, at.runtime->name_of_stream(stream), flags, views.get(), at.lock);
        if (status.code() == SH_OK) views.give(count);
        return status;
    });
}

sh_status sh_release(sh_runtime* runtime, sh_block block, sh_stream stream) {
    if (shortcut(runtime, [&](core::Runtime& at) { return at.release_plainly(block, at.name_of_stream(stream)); }))
        return SH_OK;
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->release(block, at.runtime->name_of_stream(stream), at.lock);
    });
}

sh_status sh_prefetch(sh_runtime* runtime, const sh_block* blocks, uint64_t count) {
    return guarded([&] {
        std::span<const sh_block> ids;
        SH_TRY(take_blocks(blocks, count, &ids));
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->prefetch(ids, at.lock);
    });
}

sh_status sh_read_block(sh_runtime* runtime, sh_block block, sh_stream stream, uint64_t offset, void* buffer,
                        uint64_t bytes) {
    return guarded([&] {
        if (bytes && !buffer) return Status(SH_ERROR_INVALID_ARGUMENT, "buffer is NULL");
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->read(block, at.runtime->name_of_stream(stream), offset, buffer, bytes, at.lock);
    });
}

sh_status sh_verify_block(sh_runtime* runtime, sh_block block, sh_stream stream) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->verify(block, at.runtime->name_of_stream(stream), at.lock);
    });
}

sh_status sh_stream_forget(sh_runtime* runtime, sh_stream stream) {
    return guarded([&] {
        LockedRuntime at;
        SH_TRY(find_runtime(runtime, &at));
        return at.runtime->forget(at.runtime->name_of_stream(stream));
    });
}

}  // extern "C"
