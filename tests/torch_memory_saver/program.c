/* A program that knows nothing of the library, and what it sees of the library in LD_PRELOAD. It gets CUDA's functions
 * in one of the ways in which programs do:
 *
 *   program WAY FOLDER_OF_THE_STUBS
 *
 * runtime, driver, asked                       it links them, or asks the driver for them
 * runtime-opened, driver-opened, asked-opened  it opens a library and looks them up (LINKED is not defined)
 *
 * Memory of the stub of the driver is memory of the process. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed_checks;

static void check(int holds, const char* what, int line) {
    if (holds) return;
    fprintf(stderr, "line %d: this does not hold: %s\n", line, what);
    ++failed_checks;
}
#define CHECK(condition) check((condition) != 0, #condition, __LINE__)

enum { kBytes = 4 << 20 };

typedef int (*driver_alloc_fn)(unsigned long long*, size_t);
typedef int (*driver_free_fn)(unsigned long long);
typedef int (*look_up_fn)(const char*, void**, int, uint64_t, int*);
typedef int (*old_look_up_fn)(const char*, void**, int, uint64_t);

/* What the program calls. */
static int (*runtime_malloc)(void**, size_t);
static int (*runtime_free)(void*);
static int (*get_device)(int*);
static driver_alloc_fn driver_alloc;
static driver_free_fn driver_free;

/* What the library adds. */
static void (*set_region)(bool);
static bool (*get_region)(void);
static void (*set_tag)(const char*);
static void (*set_backup)(bool);
static int (*pause_tag)(const char*);
static int (*resume_tag)(const char*);
static uint8_t* (*backup_of)(const uint8_t*, uint64_t);
static uint64_t (*last_error)(char*, uint64_t);

#ifdef LINKED
extern int cudaMalloc(void**, size_t);
extern int cudaFree(void*);
extern int cudaGetDevice(int*);
extern int cuMemAlloc_v2(unsigned long long*, size_t);
extern int cuMemFree_v2(unsigned long long);
extern int cuGetProcAddress(const char*, void**, int, uint64_t);
extern int cuGetProcAddress_v2(const char*, void**, int, uint64_t, int*);
#endif

static void* found(void* library, const char* name) {
    void* const function = dlsym(library, name);
    if (!function) {
        fprintf(stderr, "there is no %s\n", name);
        exit(1);
    }
    return function;
}

/* Asks the driver, by the function of a version that the driver itself names. */
static void ask(look_up_fn look_up, old_look_up_fn old_look_up) {
    void *again = NULL, *old = NULL;
    int status = 1;
    CHECK(look_up("cuGetProcAddress", &again, 12000, 0, &status) == 0 && again && status == 0);
    CHECK(look_up("cuGetProcAddress", &old, 11030, 0, &status) == 0 && old && old != again);
    look_up = (look_up_fn)again;
    CHECK(look_up("cuMemAlloc", (void**)&driver_alloc, 12000, 0, &status) == 0);
    CHECK(((old_look_up_fn)old)("cuMemFree", (void**)&driver_free, 11030, 0) == 0);
    CHECK(old_look_up("cuMemFree", &again, 11030, 0) == 0 && again == (void*)driver_free);
    CHECK(look_up("cuMemGetInfo", &again, 12000, 0, &status) == 0 && again);
    CHECK(look_up("cuNothing", &again, 12000, 0, &status) == 0 && !again && status == 1);
}

static void begin(const char* way, const char* folder) {
    void *driver = NULL, *runtime = NULL;
    char path[4096];
#ifdef LINKED
    (void)folder, (void)path, (void)runtime;
    get_device = cudaGetDevice;
    if (!strcmp(way, "runtime")) runtime_malloc = cudaMalloc, runtime_free = cudaFree;
    if (!strcmp(way, "driver")) driver_alloc = cuMemAlloc_v2, driver_free = cuMemFree_v2;
    if (!strcmp(way, "asked")) ask(cuGetProcAddress_v2, cuGetProcAddress);
    driver = RTLD_DEFAULT;
#else
    snprintf(path, sizeof path, "%s/libcudart-stub.so", folder);
    runtime = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!runtime || !driver) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    get_device = (int (*)(int*))found(runtime, "cudaGetDevice");
    if (!strcmp(way, "runtime-opened")) {
        runtime_malloc = (int (*)(void**, size_t))found(runtime, "cudaMalloc");
        runtime_free = (int (*)(void*))found(runtime, "cudaFree");
    }
    if (!strcmp(way, "driver-opened")) {
        driver_alloc = (driver_alloc_fn)found(driver, "cuMemAlloc_v2");
        driver_free = (driver_free_fn)found(driver, "cuMemFree_v2");
    }
    if (!strcmp(way, "asked-opened"))
        ask((look_up_fn)found(driver, "cuGetProcAddress_v2"), (old_look_up_fn)found(driver, "cuGetProcAddress"));
#endif
    set_region = (void (*)(bool))found(RTLD_DEFAULT, "tms_set_interesting_region");
    get_region = (bool (*)(void))found(RTLD_DEFAULT, "tms_get_interesting_region");
    set_tag = (void (*)(const char*))found(RTLD_DEFAULT, "tms_set_current_tag");
    set_backup = (void (*)(bool))found(RTLD_DEFAULT, "tms_set_enable_cpu_backup");
    pause_tag = (int (*)(const char*))found(RTLD_DEFAULT, "tms_pause");
    resume_tag = (int (*)(const char*))found(RTLD_DEFAULT, "tms_resume");
    backup_of = (uint8_t * (*)(const uint8_t*, uint64_t)) found(RTLD_DEFAULT, "tms_get_cpu_backup_pointer");
    last_error = (uint64_t(*)(char*, uint64_t))found(RTLD_DEFAULT, "tms_stagehand_last_error");
    (void)driver;
}

static int allocate(uint8_t** memory, size_t bytes) {
    unsigned long long address = 0;
    int device = 0, result = 0;
    CHECK(get_device(&device) == 0);
    if (runtime_malloc) return runtime_malloc((void**)memory, bytes);
    result = driver_alloc(&address, bytes);
    *memory = (uint8_t*)(uintptr_t)address;
    return result;
}

static int give_back(uint8_t* memory) {
    return runtime_free ? runtime_free(memory) : driver_free((unsigned long long)(uintptr_t)memory);
}

static bool is_all(const uint8_t* memory, int value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (memory[i] != value) return false;
    return true;
}

static void* allocate_outside(void* given) {
    uint8_t** const memory = (uint8_t**)given;
    CHECK(!get_region() && allocate(memory, kBytes) == 0);
    return NULL;
}

static void a_region_serves_its_thread(void) {
    uint8_t *outside = NULL, *other = NULL, *weights = NULL, *cache = NULL, *away = NULL, *small = NULL;
    pthread_t thread;
    CHECK(allocate(&outside, kBytes) == 0);
    set_region(true);
    set_backup(true);
    set_tag("weights");
    CHECK(allocate(&weights, kBytes) == 0 && allocate(&small, 100) == 0);
    set_backup(false);
    set_tag("cache");
    CHECK(allocate(&cache, kBytes) == 0);
    CHECK(pthread_create(&thread, NULL, allocate_outside, &other) == 0 && pthread_join(thread, NULL) == 0);
    memset(outside, 1, kBytes);
    memset(other, 2, kBytes);
    memset(weights, 3, kBytes);
    memset(small, 4, 100);
    memset(cache, 5, kBytes);
    CHECK(backup_of(weights, kBytes) == NULL);
    CHECK(pause_tag(NULL) == 0 && pause_tag("weights") < 0 && pause_tag(NULL) == 0);
    CHECK(is_all(outside, 1, kBytes) && is_all(other, 2, kBytes));
    CHECK(backup_of(outside, kBytes) == NULL && backup_of(cache, kBytes) == NULL);
    away = backup_of(weights, kBytes);
    CHECK(away && is_all(away, 3, kBytes) && backup_of(weights, kBytes) == away);
    away = backup_of(weights + 5, 7);
    CHECK(away && is_all(away, 3, 7) && backup_of(weights + 5, kBytes) == NULL);
    away = backup_of(small, 100);
    CHECK(away && is_all(away, 4, 100));
    CHECK(allocate(&away, kBytes) == 2); /* its tag is released */
    CHECK(resume_tag("cache") == 0 && resume_tag("weights") == 0 && resume_tag("weights") < 0);
    CHECK(is_all(weights, 3, kBytes) && is_all(small, 4, 100) && backup_of(weights, kBytes) == NULL);
    CHECK(pause_tag("weights") == 0 && give_back(weights) == 0); /* while it is away */
    set_region(false);
    CHECK(give_back(small) == 0 && give_back(cache) == 0 && give_back(outside) == 0 && give_back(other) == 0);
    CHECK(resume_tag("") == 0);
}

static void failures_are_errors(void) {
    uint8_t* memory = NULL;
    char text[200] = "";
    set_region(true);
    set_tag("weights");
    CHECK(allocate(&memory, (size_t)1 << 50) == 2 && memory == NULL);
    CHECK(last_error(text, sizeof text) > 0 && strstr(text, "weights") == NULL && text[0]);
    set_tag("0123456789012345678901234567890123456789012345678901234567890123");
    CHECK(allocate(&memory, kBytes) == 1 && memory == NULL);
    set_tag(NULL);
    CHECK(allocate(&memory, kBytes) == 1);
    set_tag("weights");
    CHECK(allocate(&memory, 0) == (runtime_malloc ? 0 : allocate(&memory, 0)) && memory == NULL);
    CHECK(allocate(&memory, kBytes) == 0 && give_back(memory) == 0 && give_back(memory) != 0);
    CHECK(give_back(NULL) == (runtime_malloc ? 0 : give_back(NULL)));
    set_region(false);
}

/* With TMS_INIT_ENABLE and TMS_INIT_ENABLE_CPU_BACKUP. */
static void* allocate_inside(void* given) {
    uint8_t** const memory = (uint8_t**)given;
    CHECK(get_region() && allocate(memory, kBytes) == 0);
    memset(*memory, 7, kBytes);
    return NULL;
}

static void the_environment_serves_all_threads(void) {
    uint8_t *first = NULL, *second = NULL, *away = NULL;
    pthread_t thread;
    allocate_inside(&first);
    CHECK(pthread_create(&thread, NULL, allocate_inside, &second) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(pause_tag("default") == 0);
    away = backup_of(first, kBytes);
    CHECK(away && is_all(away, 7, kBytes));
    away = backup_of(second, kBytes);
    CHECK(away && is_all(away, 7, kBytes));
    CHECK(resume_tag("default") == 0 && is_all(first, 7, kBytes) && is_all(second, 7, kBytes));
    CHECK(give_back(first) == 0 && give_back(second) == 0);
}

/* Without TMS_STAGEHAND_DRIVER, for all ways but the runtime that the program links. */
static void a_region_takes_nothing(void) {
    uint8_t* memory = NULL;
    set_region(true);
    set_backup(true);
    CHECK(allocate(&memory, kBytes) == 0);
    memset(memory, 3, kBytes);
    CHECK(pause_tag(NULL) == 0 && is_all(memory, 3, kBytes) && backup_of(memory, kBytes) == NULL);
    CHECK(resume_tag(NULL) == 0 && give_back(memory) == 0);
}

static void a_wrong_variable_is_an_error(const char* variable) {
    uint8_t* memory = NULL;
    char text[200] = "";
    CHECK(allocate(&memory, kBytes) == 1 && last_error(text, sizeof text) > 0 && strstr(text, variable));
    CHECK(pause_tag(NULL) < 0 && resume_tag(NULL) < 0);
}

int main(int argc, char** argv) {
    const char* const wrong = getenv("WRONG_VARIABLE");
    if (argc != 3) return 2;
    begin(argv[1], argv[2]);
    CHECK(dlsym(RTLD_DEFAULT, "no such function") == NULL && dlsym(RTLD_NEXT, "malloc") != NULL);
    if (wrong) {
        a_wrong_variable_is_an_error(wrong);
    } else if (strcmp(argv[1], "runtime") && !getenv("TMS_STAGEHAND_DRIVER")) {
        a_region_takes_nothing();
    } else if (getenv("TMS_INIT_ENABLE")) {
        the_environment_serves_all_threads();
    } else {
        a_region_serves_its_thread();
        failures_are_errors();
    }
    return failed_checks != 0;
}
