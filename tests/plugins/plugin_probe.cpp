// A program that finds one backend and tells what came of it, so that a test can choose the environment, the
// directory and the rights: plugin-probe NAME [PATH], or plugin-probe --list. Writes the status, the
// effective user, the path and the text, one a line; as a list, a line a backend.
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "plugins/backends.h"

int main(int argc, char** argv) {
    namespace plugins = stagehand::plugins;
    if (argc == 2 && !std::strcmp(argv[1], "--list")) {
        for (const plugins::ListedBackend& backend : plugins::list_backends()) {
            std::printf("%s|%d|%d|%u|%s|%s\n", backend.name.c_str(), backend.status.code(), backend.built_in,
                        backend.device_count, backend.path.c_str(),
                        backend.status.ok() ? "" : backend.status.text());
        }
        return 0;
    }
    if (argc != 2 && argc != 3) return 2;
    const sh_backend* backend = nullptr;
    std::string path;
    const stagehand::Status status =
        plugins::find_backend(argv[1], argc == 3 ? argv[2] : nullptr, &backend, &path);
    std::printf("%d\n%u\n%s\n%s\n", status.code(), static_cast<unsigned>(geteuid()), path.c_str(),
                status.ok() ? "" : status.text());
    if (!status.ok()) return 1;
    std::printf("clock=%d size=%d\n", backend->clock != nullptr, backend->struct_size == sizeof(sh_backend));
    return 0;
}
