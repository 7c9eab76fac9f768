#include "plugins/search_path.h"

#include <dirent.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include <stagehand/backend.h>

#include "base/number.h"
#include "plugins/backend_dir.h"

namespace stagehand::plugins {
namespace {

#define SH_TEXT_OF(value) #value
#define SH_TEXT(value) SH_TEXT_OF(value)
constexpr const char* kSpiDirectory = "spi-" SH_TEXT(SH_BACKEND_SPI_VERSION);

// Returns the kernel's name of the file that is mapped at an address. Empty if the file was deleted.
std::string file_mapped_at(const void* address) {
    std::string path;
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(std::fopen("/proc/self/maps", "re"), std::fclose);
    if (!maps) return path;
    char line[4608];
    while (std::fgets(line, sizeof line, maps.get())) {
        std::string_view rest = line;
        const auto begin = take_number<uint64_t>(&rest, 16);
        if (!rest.starts_with('-')) continue;
        rest.remove_prefix(1);
        const auto end = take_number<uint64_t>(&rest, 16);
        const uint64_t wanted = reinterpret_cast<uint64_t>(address);
        if (!begin || !end || wanted < *begin || wanted >= *end) continue;
        rest.remove_prefix(std::min(rest.find('/'), rest.size()));  // what is before the name has none
        path = rest.substr(0, rest.find('\n'));
        break;
    }
    const std::string deleted = " (deleted)";
    if (path.size() > deleted.size() && path.compare(path.size() - deleted.size(), deleted.size(), deleted) == 0)
        path.clear();
    return path;
}

// Returns the directory of the library, or of the program that it is linked into. Empty if it cannot be found.
std::string own_directory() {
    Dl_info info = {};
    std::string path;
    if (dladdr(reinterpret_cast<const void*>(&search_directories), &info) && info.dli_fname) path = info.dli_fname;
    // The dynamic linker's path may be relative to a directory that is no longer the current directory.
    if (path.empty() || path[0] != '/') path = file_mapped_at(reinterpret_cast<const void*>(&search_directories));
    if (path.empty() || path[0] != '/') return {};
    return path.substr(0, path.find_last_of('/'));
}

void add(std::vector<SearchDirectory>* to, const std::string& path) {
    for (const SearchDirectory& known : *to) {
        if (known.path == path) return;
    }
    to->push_back({path, path.empty() || path[0] != '/' ? "ignored, because it is not an absolute path" : ""});
}

}  // namespace

std::vector<SearchDirectory> search_directories() {
    std::vector<SearchDirectory> result;
    const char* variable = secure_getenv("STAGEHAND_BACKEND_PATH");
    if (variable && *variable) {
        std::string list = variable;
        for (size_t begin = 0; begin <= list.size();) {
            const size_t end = std::min(list.find(':', begin), list.size());
            if (end > begin) add(&result, list.substr(begin, end - begin));
            begin = end + 1;
        }
        return result;
    }
    if (const std::string own = own_directory(); !own.empty()) {
        add(&result, own + "/" + kSpiDirectory);
        add(&result, own + "/stagehand/" + kSpiDirectory);
    }
    add(&result, STAGEHAND_BACKEND_DIR);
    return result;
}

std::vector<std::string> names_in_search_directories() {
    static constexpr char kPrefix[] = "stagehand-", kSuffix[] = ".so";
    constexpr size_t kPrefixLength = sizeof kPrefix - 1, kSuffixLength = sizeof kSuffix - 1;
    std::vector<std::string> names;
    for (const SearchDirectory& directory : search_directories()) {
        if (!directory.refusal.empty()) continue;
        const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(directory.path.c_str()), closedir);
        if (!open) continue;
        while (const dirent* entry = readdir(open.get())) {
            const std::string file = entry->d_name;
            if (file.size() <= kPrefixLength + kSuffixLength || file.compare(0, kPrefixLength, kPrefix) != 0 ||
                file.compare(file.size() - kSuffixLength, kSuffixLength, kSuffix) != 0) {
                continue;
            }
            names.push_back(file.substr(kPrefixLength, file.size() - kPrefixLength - kSuffixLength));
        }
    }
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
}

}  // namespace stagehand::plugins
