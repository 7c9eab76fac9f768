/*
 * A backend that can do nothing, whole or broken in one way, as the macros say:
 *   PLUGIN_NAME       its name, as a string; NULL: it tells none
 *   PLUGIN_SPI        version in its table
 *   PLUGIN_SIZE       struct_size of its table
 *   PLUGIN_FILL       the required member `fill`
 *   PLUGIN_ANSWER     what sh_backend_query() returns
 *   PLUGIN_NO_TABLE   it succeeds without a table
 *   PLUGIN_NO_QUERY   it has no sh_backend_query()
 *   PLUGIN_PROBE      what probe() returns
 *   PLUGIN_COUNT      the number of its devices
 *   PLUGIN_ASKS       it asks for another backend while it is being loaded, and returns the answer
 *   PLUGIN_MUTE       it has no text for its failures
 *   PLUGIN_TELLS      it opens devices, and tells of them what the option "field=value" says
 */
#include <stagehand/backend.h>

#include <stdlib.h>
#include <string.h>

#ifndef PLUGIN_NAME
#define PLUGIN_NAME "good"
#endif
#ifndef PLUGIN_SPI
#define PLUGIN_SPI SH_BACKEND_SPI_VERSION
#endif
#ifndef PLUGIN_SIZE
#define PLUGIN_SIZE sizeof(sh_backend)
#endif
#ifndef PLUGIN_FILL
#define PLUGIN_FILL fill
#endif
#ifndef PLUGIN_ANSWER
#define PLUGIN_ANSWER SH_OK
#endif
#ifndef PLUGIN_COUNT
#define PLUGIN_COUNT 3
#endif
#ifndef PLUGIN_PROBE
#define PLUGIN_PROBE SH_OK
#endif

static sh_status probe(uint32_t* count) {
    if (PLUGIN_PROBE >= 0) *count = PLUGIN_COUNT;
    return PLUGIN_PROBE;
}
#ifdef PLUGIN_TELLS
static int closed;
static uint64_t free_bytes = 1 << 29;
SH_API int sh_test_closed_devices(void);
SH_API int sh_test_closed_devices(void) { return closed; }

#define FIELD(name) \
    if (!strncmp(option, #name "=", sizeof #name)) memcpy(&info->name, &number, sizeof info->name);
static sh_status device_open(uint32_t i, const char* option, sh_backend_device** device, sh_backend_device_info* info) {
    const char* const value = option ? strchr(option, '=') : NULL;
    const uint64_t number = value ? strtoull(value + 1, NULL, 0) : 0;
    (void)i;
    info->flags = SH_BACKEND_FIXED_ADDRESSES;
    info->total_bytes = 1 << 30;
    info->granularity_bytes = 4096;
    info->largest_page_bytes = 2 << 20;
    strcpy(info->description, "what a test says");
    *device = (sh_backend_device*)&closed;
    if (!value) return SH_OK;
    FIELD(struct_size)
    FIELD(flags)
    FIELD(total_bytes)
    FIELD(granularity_bytes)
    FIELD(largest_page_bytes)
    FIELD(link_bytes_per_second)
    FIELD(copy_latency_ns)
    FIELD(host_node)
    if (!strncmp(option, "description=", 12)) memset(info->description, 'x', sizeof info->description);
    if (!strncmp(option, "device=", 7)) *device = NULL;
    if (!strncmp(option, "free=", 5)) free_bytes = number;
    return SH_OK;
}
static void device_close(sh_backend_device* d) { closed += d == (sh_backend_device*)&closed; }
static sh_status memory_info(sh_backend_device* d, uint64_t* f, uint64_t* t) {
    return (void)d, *f = free_bytes, *t = 1 << 30, SH_OK;
}
#else
static sh_status device_open(uint32_t i, const char* o, sh_backend_device** d, sh_backend_device_info* f) {
    (void)i, (void)o, (void)d, (void)f;
    return SH_ERROR_UNSUPPORTED;
}
static void device_close(sh_backend_device* d) { (void)d; }
static sh_status memory_info(sh_backend_device* d, uint64_t* f, uint64_t* t) {
    return (void)d, (void)f, (void)t, SH_ERROR_UNSUPPORTED;
}
#endif
#ifdef PLUGIN_MUTE
static const char* last_error(void) { return NULL; }
#else
static const char* last_error(void) { return "the test's plugin can do nothing"; }
#endif
static sh_status pages_create(sh_backend_device* d, uint64_t b, uint64_t c, sh_backend_page* p) {
    return (void)d, (void)b, (void)c, (void)p, SH_ERROR_UNSUPPORTED;
}
static sh_status pages_destroy(sh_backend_device* d, uint64_t b, uint64_t c, const sh_backend_page* p) {
    return (void)d, (void)b, (void)c, (void)p, SH_ERROR_UNSUPPORTED;
}
static sh_status range_reserve(sh_backend_device* d, uint64_t b, uint64_t a, uint64_t* o) {
    return (void)d, (void)b, (void)a, (void)o, SH_ERROR_UNSUPPORTED;
}
static sh_status range_free(sh_backend_device* d, uint64_t a, uint64_t b) {
    return (void)d, (void)a, (void)b, SH_ERROR_UNSUPPORTED;
}
static sh_status pages_map(sh_backend_device* d, uint64_t a, uint64_t b, uint64_t c, const sh_backend_page* p) {
    return (void)d, (void)a, (void)b, (void)c, (void)p, SH_ERROR_UNSUPPORTED;
}
static sh_status pages_unmap(sh_backend_device* d, uint64_t a, uint64_t b, uint64_t c) {
    return (void)d, (void)a, (void)b, (void)c, SH_ERROR_UNSUPPORTED;
}
static sh_status host_register(sh_backend_device* d, void* m, uint64_t b) {
    return (void)d, (void)m, (void)b, SH_ERROR_UNSUPPORTED;
}
static sh_status host_unregister(sh_backend_device* d, void* m) { return (void)d, (void)m, SH_ERROR_UNSUPPORTED; }
static sh_status host_is_pinned(sh_backend_device* d, const void* m, uint64_t b, uint32_t* p) {
    return (void)d, (void)m, (void)b, (void)p, SH_ERROR_UNSUPPORTED;
}
static sh_status stream_create(sh_backend_device* d, sh_stream* s) { return (void)d, (void)s, SH_ERROR_UNSUPPORTED; }
static sh_status on_stream(sh_backend_device* d, sh_stream s) { return (void)d, (void)s, SH_ERROR_UNSUPPORTED; }
static sh_status stream_wait_event(sh_backend_device* d, sh_stream s, sh_backend_event e) {
    return (void)d, (void)s, (void)e, SH_ERROR_UNSUPPORTED;
}
static sh_status stream_launch(sh_backend_device* d, sh_stream s, void (*f)(void*), void* u, int64_t n) {
    return (void)d, (void)s, (void)f, (void)u, (void)n, SH_ERROR_UNSUPPORTED;
}
static sh_status event_create(sh_backend_device* d, uint32_t t, sh_backend_event* e) {
    return (void)d, (void)t, (void)e, SH_ERROR_UNSUPPORTED;
}
static sh_status on_event(sh_backend_device* d, sh_backend_event e) { return (void)d, (void)e, SH_ERROR_UNSUPPORTED; }
static sh_status event_record(sh_backend_device* d, sh_backend_event e, sh_stream s) {
    return (void)d, (void)e, (void)s, SH_ERROR_UNSUPPORTED;
}
static sh_status event_query(sh_backend_device* d, sh_backend_event e, uint32_t* o) {
    return (void)d, (void)e, (void)o, SH_ERROR_UNSUPPORTED;
}
static sh_status event_elapsed(sh_backend_device* d, sh_backend_event b, sh_backend_event e, int64_t* n) {
    return (void)d, (void)b, (void)e, (void)n, SH_ERROR_UNSUPPORTED;
}
static sh_status copy_to_device(sh_backend_device* d, sh_stream s, uint64_t t, const void* f, uint64_t b) {
    return (void)d, (void)s, (void)t, (void)f, (void)b, SH_ERROR_UNSUPPORTED;
}
static sh_status copy_to_host(sh_backend_device* d, sh_stream s, void* t, uint64_t f, uint64_t b) {
    return (void)d, (void)s, (void)t, (void)f, (void)b, SH_ERROR_UNSUPPORTED;
}
static sh_status copy_on_device(sh_backend_device* d, sh_stream s, uint64_t t, uint64_t f, uint64_t b) {
    return (void)d, (void)s, (void)t, (void)f, (void)b, SH_ERROR_UNSUPPORTED;
}
static sh_status fill(sh_backend_device* d, sh_stream s, uint64_t t, uint8_t v, uint64_t b) {
    return (void)d, (void)s, (void)t, (void)v, (void)b, SH_ERROR_UNSUPPORTED;
}
static uint64_t clock_ns(sh_backend_device* d) { return (void)d, 0; }

static const struct {
    sh_backend table;
    void* beyond; /* what a later version may have added */
} backend = {
    {PLUGIN_SIZE,
     PLUGIN_SPI,
     PLUGIN_NAME,
     "1",
     probe,
     device_open,
     device_close,
     last_error,
     memory_info,
     pages_create,
     pages_destroy,
     range_reserve,
     range_free,
     pages_map,
     pages_unmap,
     host_register,
     host_unregister,
     host_is_pinned,
     stream_create,
     on_stream,
     on_stream,
     stream_wait_event,
     stream_launch,
     event_create,
     on_event,
     event_record,
     event_query,
     on_event,
     event_elapsed,
     copy_to_device,
     copy_to_host,
     copy_on_device,
     PLUGIN_FILL,
     clock_ns,
     0,
     0,
     0,
     0,
     0,
     0,
     0,
     0},
    (void*)1,
};

#ifndef PLUGIN_NO_QUERY
SH_API sh_status sh_backend_query(uint32_t spi_version, const sh_backend_host* host, const sh_backend** out_backend) {
    (void)fill;
    (void)spi_version;
    (void)host;
#ifdef PLUGIN_ASKS
    {
        const sh_backend* other = 0;
        return host->find_backend("host", &other);
    }
#endif
    if (PLUGIN_ANSWER >= 0) {
#ifndef PLUGIN_NO_TABLE
        *out_backend = &backend.table;
#else
        (void)out_backend;
        (void)backend;
#endif
    }
    return PLUGIN_ANSWER;
}
#else
SH_API const void* sh_test_keep(void);
SH_API const void* sh_test_keep(void) { return &backend; }
#endif
