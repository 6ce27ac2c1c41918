/* The C interface of muster: devices, plans, a rank's facts, its steps and spans, and requests to
 * stop. It is for languages that can call C. The library behind it, libmuster.so.0, needs neither
 * LibTorch nor a C++ runtime.
 *
 * A function that can fail returns a code, 0 for success. muster_last_error() then has the text.
 * What is more than a number goes in and comes out as JSON, in UTF-8. The caller frees every text
 * that it gets by a `char **` with muster_free(). All functions may be called from any thread.
 *
 * The interface only grows: a program that was built with an older header works with a newer
 * library. MUSTER_C_API_VERSION counts what was added.
 *
 *   char *json = NULL;
 *   if (muster_devices(NULL, &json) != MUSTER_OK)
 *     fprintf(stderr, "%s\n", muster_last_error());
 *   muster_free(json);
 */
#ifndef MUSTER_C_API_H
#define MUSTER_C_API_H

#include <stdint.h>

#if defined(__GNUC__)
#define MUSTER_C_API __attribute__((visibility("default")))
#else
#define MUSTER_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MUSTER_C_API_VERSION 1

enum {
  MUSTER_OK = 0,
  MUSTER_INVALID_ARGUMENT = 1,    /* the caller gave a wrong value: change it */
  MUSTER_FAILED_PRECONDITION = 2, /* the value is right, the moment is not */
  MUSTER_UNAVAILABLE = 3,         /* something needed is not there now */
  MUSTER_TIMEOUT = 4,
  MUSTER_PEER_FAILED = 5,
  MUSTER_BACKEND_FAILED = 6,
  MUSTER_IO = 7,
  MUSTER_INTERNAL = 8 /* a bug in muster */
};

/* The exit code of a rank that stopped because it was asked to. */
#define MUSTER_STOPPED 75

/* Of the library, which may be newer than the header: MUSTER_C_API_VERSION, and muster's version
 * ("0.1.0"). */
MUSTER_C_API int muster_c_api_version(void);
MUSTER_C_API const char* muster_version(void);

/* What the last call of this thread that failed says: `<operation>: expected <rule>, got <value>;
 * <next step>`. It lives until the thread's next call. */
MUSTER_C_API const char* muster_last_error(void);

/* `text` may be NULL. */
MUSTER_C_API void muster_free(char* text);

/* What this machine has, or the machine of a file: the JSON of `muster devices --json`, schema
 * "muster.devices/1". `options` is NULL, or an object that may have
 *   "inventory"  a file's path, as for --inventory. */
MUSTER_C_API int muster_devices(const char* options, char** json);

/* Which rank would get which device: what `muster run --dry-run` shows. `request` is NULL, or an
 * object that may have, each with the meaning of the flag of `muster run`,
 *   "n"              ranks on each host: a number, "auto", "cpu" or "gpu"
 *   "gpus", "policy", "mesh", "surplus", "visibility", "numa_binding", "inventory"   a text
 *   "gpus_per_rank", "global_batch", "cpu_slots"                                     a number
 *   "map"            an array: the index of each local rank's GPU
 *   "scores"         an object: a GPU's speed
 *   "rank_memory"    an array of bytes, or of texts as "20GiB", by local rank.
 * The answer has "plan" (schema "muster.plan/1"), "table" (the same for people) and "devices" (the
 * machine, as of muster_devices). */
MUSTER_C_API int muster_plan(const char* request, char** json);

/* The table of a plan whose JSON is given. */
MUSTER_C_API int muster_plan_table(const char* plan, char** text);

#ifdef __cplusplus
}
#endif

#endif
