// Memory of engines, and its pauses.
#include <algorithm>
#include <optional>
#include <vector>

#include "api/guard.h"
#include "api/scopes.h"
#include "base/flags.h"
#include "core/occupancy/occupancy.h"

using namespace stagehand;
using namespace stagehand::api;

namespace {

// Made at the first use, because most devices never need one.
Status find_occupancy(sh_device* handle, std::shared_ptr<core::Occupancy>* out) {
    core::Lock lock;
    auto* slot = devices().lock(handle, &lock);
    if (!slot) return unknown_device(handle);
    OpenDevice& open = *slot->object;
    if (!open.occupancy) open.occupancy = std::make_shared<core::Occupancy>(open.device);
    *out = open.occupancy;
    return Status();
}

// Runs `work` on the occupancy of a device.
template <class Work>
sh_status with_occupancy(sh_device* handle, Work&& work) noexcept {
    return guarded([&] {
        std::shared_ptr<core::Occupancy> occupancy;
        SH_TRY(find_occupancy(handle, &occupancy));
        return work(*occupancy);
    });
}

Status check_contents(uint32_t contents) {
    if (contents <= SH_CONTENTS_FILE) return Status();
    return Status(SH_ERROR_INVALID_ARGUMENT,
                  "options.contents is " + std::to_string(contents) + ", which is not one of SH_CONTENTS_*");
}

Status check_format(uint32_t format) {
    if (format <= SH_FORMAT_F8_E5M2) return Status();
    return Status(SH_ERROR_INVALID_ARGUMENT,
                  "options.format is " + std::to_string(format) + ", which is not one of SH_FORMAT_*");
}

std::optional<core::WayOut> way_out(uint32_t contents) {
    switch (contents) {
        case SH_CONTENTS_STAGE:
            return core::WayOut{core::Leaving::stage, false};
        case SH_CONTENTS_FILE:
            return core::WayOut{core::Leaving::stage, true};
        case SH_CONTENTS_DROP:
            return core::WayOut{core::Leaving::drop, false};
        case SH_CONTENTS_ZERO:
            return core::WayOut{core::Leaving::zero, false};
        default:
            return std::nullopt;
    }
}

Status take_tag(const char* given, std::string* out) {
    *out = given ? given : "default";
    if (!out->empty() && out->size() < sizeof sh_occupancy_info::tag) return Status();
    return Status(SH_ERROR_INVALID_ARGUMENT, "options.tag \"" + *out + "\" does not have 1 to 63 bytes");
}

Status take_selection(const char* const* tags, uint64_t count, uint32_t flags, core::TagSelection* out) {
    SH_TRY(check_count(count, "options.tag_count"));
    if (count && !tags) return Status(SH_ERROR_INVALID_ARGUMENT, "options.tags is NULL");
    for (uint64_t i = 0; i < count; i++)
        if (!tags[i]) return Status(SH_ERROR_INVALID_ARGUMENT, "options.tags[" + std::to_string(i) + "] is NULL");
    out->names = {tags, count};
    out->no_wait = flags & SH_OCCUPANCY_NO_WAIT;
    out->repeat = flags & SH_OCCUPANCY_REPEAT;
    return Status();
}

Status take_ranges(const sh_memory_range* ranges, uint64_t count, std::vector<core::AddressRange>* out) {
    SH_TRY(check_count(count, "options.unused_count"));
    if (count && !ranges) return Status(SH_ERROR_INVALID_ARGUMENT, "options.unused is NULL");
    for (uint64_t i = 0; i < count; i++) {
        const core::AddressRange range{ranges[i].address, ranges[i].address + ranges[i].bytes};
        if (range.end < range.begin)
            return Status(SH_ERROR_INVALID_ARGUMENT,
                          "options.unused[" + std::to_string(i) + "] reaches past the end of all addresses");
        if (range.begin != range.end) out->push_back(range);
    }
    return Status();
}

// What sh_pause() is asked for.
struct Pause {
    bool prepares = false;
    core::TagSelection tags;
    core::PauseWishes wishes;
};

Status take_pause(const sh_pause_options* given, Pause* out) {
    sh_pause_options options;
    SH_TRY(take_options(given, "options", &options));
    SH_TRY(check_contents(options.contents));
    SH_TRY(check_format(options.format));
    SH_TRY(check_flags("options.flags", options.flags,
                       {SH_KNOWN(SH_OCCUPANCY_NO_WAIT), SH_KNOWN(SH_OCCUPANCY_REPEAT), SH_KNOWN(SH_OCCUPANCY_COPY_ALL),
                        SH_KNOWN(SH_OCCUPANCY_UNPINNED), SH_KNOWN(SH_OCCUPANCY_PREPARE)}));
    SH_TRY(take_selection(options.tags, options.tag_count, options.flags, &out->tags));
    if (options.folder && !*options.folder) return Status(SH_ERROR_INVALID_ARGUMENT, "options.folder is empty");
    out->prepares = options.flags & SH_OCCUPANCY_PREPARE;
    out->wishes.contents = way_out(options.contents);
    out->wishes.format = options.format;
    out->wishes.copy_all = options.flags & SH_OCCUPANCY_COPY_ALL;
    out->wishes.pinned = !(options.flags & SH_OCCUPANCY_UNPINNED);
    if (options.folder) out->wishes.folder = options.folder;
    out->wishes.host_bytes = options.host_bytes;
    return take_ranges(options.unused, options.unused_count, &out->wishes.unused);
}

// Runs `work` on a caller's struct, which may be NULL.
template <class Work>
Status fill_change(sh_occupancy_change* to, Work&& work) {
    if (to) SH_TRY(check_struct(to, "out_change"));
    Output<sh_occupancy_change> out(to);
    SH_TRY(work(out.get()));
    out.give();
    return Status();
}

// Writes all but the size that the caller has told.
void copy_info(const sh_occupancy_info& from, sh_occupancy_info* to) {
    const uint32_t size = to->struct_size;
    *to = from;
    to->struct_size = size;
}

}  // namespace

extern "C" {

sh_status sh_alloc(sh_device* device, uint64_t bytes, const sh_alloc_options* options, uint64_t* out_address) {
    return with_occupancy(device, [&](core::Occupancy& at) {
        if (!out_address) return Status(SH_ERROR_INVALID_ARGUMENT, "out_address is NULL");
        if (!bytes) return Status(SH_ERROR_INVALID_ARGUMENT, "bytes is 0");
        sh_alloc_options wanted;
        SH_TRY(take_options(options, "options", &wanted));
        SH_TRY(check_contents(wanted.contents));
        SH_TRY(check_format(wanted.format));
        SH_TRY(check_flags("options.flags", wanted.flags, {SH_KNOWN(SH_ALLOC_CONST)}));
        std::string tag;
        SH_TRY(take_tag(wanted.tag, &tag));
        const core::Keeping keeping{way_out(wanted.contents).value_or(core::WayOut()),
                                    (wanted.flags & SH_ALLOC_CONST) != 0, wanted.format};
        return at.alloc(bytes, tag, keeping, out_address);
    });
}

sh_status sh_free(sh_device* device, uint64_t address) {
    return with_occupancy(device, [&](core::Occupancy& at) { return address ? at.free(address) : Status(); });
}

sh_status sh_pause(sh_device* device, const sh_pause_options* options, sh_occupancy_change* out_change) {
    return with_occupancy(device, [&](core::Occupancy& at) {
        Pause wanted;
        SH_TRY(take_pause(options, &wanted));
        return fill_change(out_change, [&](sh_occupancy_change* change) {
            return wanted.prepares ? at.prepare(wanted.tags, wanted.wishes)
                                   : at.pause(wanted.tags, wanted.wishes, change);
        });
    });
}

sh_status sh_resume(sh_device* device, const sh_resume_options* options, sh_occupancy_change* out_change) {
    return with_occupancy(device, [&](core::Occupancy& at) {
        sh_resume_options wanted;
        SH_TRY(take_options(options, "options", &wanted));
        core::TagSelection tags;
        SH_TRY(check_flags("options.flags", wanted.flags,
                           {SH_KNOWN(SH_OCCUPANCY_NO_WAIT), SH_KNOWN(SH_OCCUPANCY_REPEAT)}));
        SH_TRY(take_selection(wanted.tags, wanted.tag_count, wanted.flags, &tags));
        return fill_change(out_change, [&](sh_occupancy_change* change) { return at.resume(tags, change); });
    });
}

sh_status sh_occupancy_get_info(sh_device* device, const char* tag, sh_occupancy_info* out_info) {
    return with_occupancy(device, [&](core::Occupancy& at) {
        return fill_struct(out_info, "out_info", [&](sh_occupancy_info* to) {
            sh_occupancy_info info;
            SH_TRY(at.info(tag, &info));
            copy_info(info, to);
            return Status();
        });
    });
}

sh_status sh_occupancy_list(sh_device* device, sh_occupancy_info* infos, uint64_t capacity, uint64_t* out_count) {
    return with_occupancy(device, [&](core::Occupancy& at) {
        if (!out_count) return Status(SH_ERROR_INVALID_ARGUMENT, "out_count is NULL");
        OutputArray<sh_occupancy_info> to;
        SH_TRY(to.open(infos, capacity, {"infos", "capacity"}));
        const std::vector<sh_occupancy_info> all = at.list();
        const uint64_t count = std::min<uint64_t>(capacity, all.size());
        for (uint64_t i = 0; i < count; i++) copy_info(all[i], to.get()[i]);
        to.give(count);
        *out_count = all.size();
        return Status();
    });
}

sh_status sh_occupancy_read(sh_device* device, uint64_t address, uint64_t bytes, void* out_contents) {
    return with_occupancy(device, [&](core::Occupancy& at) {
        if (!out_contents) return Status(SH_ERROR_INVALID_ARGUMENT, "out_contents is NULL");
        if (!bytes) return Status(SH_ERROR_INVALID_ARGUMENT, "bytes is 0");
        return at.read(address, bytes, out_contents);
    });
}

sh_status sh_occupancy_trim(sh_device* device, uint64_t* out_bytes) {
    return with_occupancy(device, [&](core::Occupancy& at) {
        uint64_t freed = 0;
        SH_TRY(at.trim(&freed));
        if (out_bytes) *out_bytes = freed;
        return Status();
    });
}

sh_status sh_occupancy_add_callbacks(sh_device* device, sh_before_pause_fn before_pause,
                                     sh_after_resume_fn after_resume, void* user_data, sh_scope** out_scope) {
    return with_occupancy(device, [&](core::Occupancy& at) {
        if (!before_pause && !after_resume)
            return Status(SH_ERROR_INVALID_ARGUMENT, "before_pause and after_resume are NULL");
        const auto id = std::make_shared<uint64_t>(0);
        const auto end = [device, id] {
            std::shared_ptr<core::Occupancy> occupancy;
            const Status found = find_occupancy(device, &occupancy);
            return found.ok() ? occupancy->remove_callbacks(*id) : unless_gone(found);
        };
        const auto begin = [&] { return at.add_callbacks({before_pause, after_resume, user_data}, id.get()); };
        return open_scope(out_scope, end, begin, true);
    });
}

}  // extern "C"
