#include "control/loader.h"

#include <mutex>
#include <string>

#include "plugins/load_error.h"
#include "plugins/plugin.h"
#include "plugins/search_path.h"

namespace stagehand::control {
namespace {

Status load(const std::string& path, const Transport** out, bool* out_exists) {
    void* entry = nullptr;
    SH_TRY(plugins::load_entry(path, kTransportEntry, &entry, out_exists));
    if (!entry) return plugins::refused(std::string("it does not export ") + kTransportEntry);
    const Transport* const found = reinterpret_cast<TransportEntry>(entry)(kTransportVersion);
    if (!found || found->version != kTransportVersion)
        return plugins::refused("it belongs to another version of the library");
    *out = found;
    return Status();
}

Status search(const Transport** out) {
    std::string tried;
    bool any_file = false;
    for (const plugins::SearchDirectory& directory : plugins::search_directories()) {
        if (!tried.empty()) tried += "; ";
        if (!directory.refusal.empty()) {
            tried += directory.path + " (" + directory.refusal + ")";
            continue;
        }
        const std::string path = directory.path + "/" + kTransportFile;
        bool exists = false;
        const Status status = load(path, out, &exists);
        if (status.ok()) return Status();
        any_file |= exists;
        tried += path + " (" + status.text() + ")";
    }
    const std::string what = std::string("the plugin for the control, ") + kTransportFile +
                             (any_file ? ", cannot be loaded: " : ", is not installed: ");
    return plugins::refused(what + (tried.empty() ? "there is no directory to search" : "tried " + tried));
}

}  // namespace

Status find_transport(const Transport** out) {
    static std::mutex* const mutex = new std::mutex;
    static const Transport* found = nullptr;
    std::lock_guard lock(*mutex);
    if (!found) SH_TRY(search(&found));
    *out = found;
    return Status();
}

}  // namespace stagehand::control
