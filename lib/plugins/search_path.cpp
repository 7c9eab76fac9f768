#include "plugins/search_path.h"

#include <dirent.h>
#include <dlfcn.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <stagehand/backend.h>

namespace stagehand::plugins {
namespace {

#define SH_TEXT_OF(value) #value
#define SH_TEXT(value) SH_TEXT_OF(value)
constexpr const char* kSpiDirectory = "spi-" SH_TEXT(SH_BACKEND_SPI_VERSION);

// The kernel's name of the file whose mapping holds an address; empty when it was deleted.
std::string file_mapped_at(const void* address) {
    std::string path;
    std::FILE* maps = std::fopen("/proc/self/maps", "re");
    if (!maps) return path;
    char line[4608];
    while (std::fgets(line, sizeof line, maps)) {
        uint64_t begin = 0, end = 0;
        int name_at = 0;
        if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %*s %*s %n", &begin, &end, &name_at) != 2 ||
            name_at == 0)
            continue;
        const uint64_t wanted = reinterpret_cast<uint64_t>(address);
        if (wanted < begin || wanted >= end) continue;
        line[std::strcspn(line, "\n")] = 0;
        path = line + name_at;
        break;
    }
    std::fclose(maps);
    const std::string deleted = " (deleted)";
    if (path.size() > deleted.size() &&
        path.compare(path.size() - deleted.size(), deleted.size(), deleted) == 0)
        path.clear();
    return path;
}

// The directory of the library (or of the program that it is linked into); empty when it cannot be told.
std::string own_directory() {
    Dl_info info = {};
    std::string path;
    if (dladdr(reinterpret_cast<const void*>(&search_directories), &info) && info.dli_fname)
        path = info.dli_fname;
    // What the dynamic linker was given may be relative to a directory that is no longer the current one.
    if (path.empty() || path[0] != '/')
        path = file_mapped_at(reinterpret_cast<const void*>(&search_directories));
    if (path.empty() || path[0] != '/') return {};
    return path.substr(0, path.find_last_of('/'));
}

void add(std::vector<SearchDirectory>* to, const std::string& path) {
    for (const SearchDirectory& known : *to) {
        if (known.path == path) return;
    }
    to->push_back({path, path.empty() || path[0] != '/' ? "not an absolute directory, ignored" : ""});
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
#ifdef STAGEHAND_BACKEND_DIR
    add(&result, STAGEHAND_BACKEND_DIR);
#endif
    return result;
}

std::vector<std::string> names_in_search_directories() {
    static constexpr char kPrefix[] = "stagehand-", kSuffix[] = ".so";
    constexpr size_t kPrefixLength = sizeof kPrefix - 1, kSuffixLength = sizeof kSuffix - 1;
    std::vector<std::string> names;
    for (const SearchDirectory& directory : search_directories()) {
        if (!directory.refusal.empty()) continue;
        DIR* const open = opendir(directory.path.c_str());
        if (!open) continue;
        while (const dirent* entry = readdir(open)) {
            const std::string file = entry->d_name;
            if (file.size() <= kPrefixLength + kSuffixLength ||
                file.compare(0, kPrefixLength, kPrefix) != 0 ||
                file.compare(file.size() - kSuffixLength, kSuffixLength, kSuffix) != 0) {
                continue;
            }
            names.push_back(file.substr(kPrefixLength, file.size() - kPrefixLength - kSuffixLength));
        }
        closedir(open);
    }
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
}

}  // namespace stagehand::plugins
