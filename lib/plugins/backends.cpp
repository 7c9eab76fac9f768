#include "plugins/backends.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "backend/backend_device.h"
#include "base/log.h"
#include "base/no_throw.h"
#include "plugins/built_in.h"
#include "plugins/plugin.h"
#include "plugins/search_path.h"
#include "plugins/table_check.h"

namespace stagehand::plugins {
namespace {

// The backends of the project that are plugins of the shared library. They are listed even if they are not there.
constexpr const char* kOptional[] = {"cuda", "hip"};

struct Found {
    const sh_backend* table = nullptr;
    std::string path;
};

// The cache is never destroyed, because tables are used until the process ends.
struct Cache {
    std::mutex mutex;
    std::map<std::pair<std::string, std::string>, Found> found;  // by name and explicit path
};
Cache& cache() {
    static Cache* const instance = new Cache;
    return *instance;
}

// Set while this thread loads a plugin. A search in that time would wait for its own thread.
thread_local bool loading = false;

sh_status find_for_backend(const char* name, const sh_backend** out_backend) {
    try {
        const Status status = find_backend(name, nullptr, out_backend, nullptr);
        if (!status.ok()) log_line(SH_LOG_ERROR, "%s", status.text());
        return status.code();
    } catch (...) {
        return SH_ERROR_OUT_OF_HOST_MEMORY;
    }
}

const sh_backend_host kServices = {
    .struct_size = sizeof(sh_backend_host),
    .spi_version = SH_BACKEND_SPI_VERSION,
    .log = [](int32_t level, const char* message) { log_line(level, "%s", message); },
    .find_backend = find_for_backend,
};

// The name becomes a part of a file name, so it must not contain anything that leads elsewhere.
bool is_name(const char* name) {
    const size_t length = std::strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-");
    return length > 0 && length < 32 && name[length] == 0;
}

Status load_built_in(const BuiltIn& built_in, Found* out) {
    const sh_backend* table = nullptr;
    if (sh_status code = built_in.query(SH_BACKEND_SPI_VERSION, &kServices, &table); code < 0) {
        return Status(code, std::string("the built-in backend ") + built_in.name + " does not support this library");
    }
    return check_table(table, built_in.name, &out->table);
}

Status search(const std::string& name, Found* out) {
    std::string tried;
    bool any_file = false;
    for (const SearchDirectory& directory : search_directories()) {
        std::string path = directory.path + "/stagehand-" + name + ".so";
        if (!tried.empty()) tried += "; ";
        if (!directory.refusal.empty()) {
            tried += directory.path + " (" + directory.refusal + ")";
            continue;
        }
        bool exists = false;
        const Status status = load_plugin(path, name, kServices, &out->table, &exists);
        if (status.ok()) {
            if (any_file)
                log_line(SH_LOG_WARNING, "backend %s: %s is used, because other files could not be used: %s",
                         name.c_str(), path.c_str(), tried.c_str());
            out->path = std::move(path);
            return Status();
        }
        any_file |= exists;
        tried += path + " (" + status.text() + ")";
    }
    const std::string list = tried.empty() ? "there is no directory to search" : "tried " + tried;
    if (any_file) return Status(SH_ERROR_BACKEND_LOAD, "backend '" + name + "' cannot be loaded: " + list);
    return Status(SH_ERROR_NOT_FOUND, "there is no backend '" + name + "': " + list);
}

Status look_for(const std::string& name, const char* explicit_path, Found* out) {
    if (explicit_path) {
        if (explicit_path[0] != '/') {
            return Status(SH_ERROR_INVALID_ARGUMENT,
                          std::string("the backend's path '") + explicit_path + "' is not absolute");
        }
        bool exists = false;
        out->path = explicit_path;
        const Status status = load_plugin(explicit_path, name, kServices, &out->table, &exists);
        if (!status.ok()) {
            return Status(SH_ERROR_BACKEND_LOAD, "backend '" + name + "' cannot be loaded: tried " + explicit_path +
                                                     " (" + status.text() + ")");
        }
        return Status();
    }
    for (const BuiltIn& built_in : built_in_backends()) {
        if (name == built_in.name) return load_built_in(built_in, out);
    }
    return search(name, out);
}

void probe(ListedBackend* entry) {
    const sh_backend* table = nullptr;
    entry->status = find_backend(entry->name.c_str(), nullptr, &table, &entry->path);
    if (!entry->status.ok()) return;
    uint32_t count = 0;
    if (sh_status code = table->probe(&count); code < 0) {
        entry->status = Status(code, error_text(*table));
    } else {
        entry->device_count = count;
    }
}

}  // namespace

Status find_backend(const char* name, const char* explicit_path, const sh_backend** out_backend,
                    std::string* out_path) {
    if (!name || !is_name(name)) {
        return Status(SH_ERROR_NOT_FOUND, std::string("'") + (name ? name : "") + "' is not a valid backend name");
    }
    if (loading)
        return Status(SH_ERROR_INVALID_STATE, "a backend cannot search for another backend while it is being loaded");
    Cache& known = cache();
    std::lock_guard lock(known.mutex);
    const auto key = std::pair(std::string(name), std::string(explicit_path ? explicit_path : ""));
    // The entry is made first, so that a loaded backend is not lost if no memory is left for it.
    const auto [entry, added] = known.found.try_emplace(key);
    if (added) {
        loading = true;
        auto& place = entry->second;
        const Status status = no_throw([&] { return look_for(key.first, explicit_path, &place); });
        loading = false;
        if (!status.ok()) {
            known.found.erase(entry);
            return status;
        }
        log_line(SH_LOG_INFO, "backend %s %s from %s", name, entry->second.table->version,
                 entry->second.path.empty() ? "the library" : entry->second.path.c_str());
    }
    *out_backend = entry->second.table;
    if (out_path) *out_path = entry->second.path;
    return Status();
}

std::vector<ListedBackend> list_backends() {
    std::vector<std::string> names;
    const auto add = [&names](const std::string& name) {
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    };
    for (const BuiltIn& built_in : built_in_backends()) add(built_in.name);
    for (const char* name : kOptional) add(name);
    for (const std::string& name : names_in_search_directories()) {
        if (is_name(name.c_str())) add(name);
    }
    std::vector<ListedBackend> result;
    for (const std::string& name : names) {
        ListedBackend& entry = result.emplace_back();
        entry.name = name;
        entry.built_in =
            std::ranges::any_of(built_in_backends(), [&](const BuiltIn& known) { return name == known.name; });
        probe(&entry);
    }
    return result;
}

}  // namespace stagehand::plugins
