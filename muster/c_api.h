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

/* ---- A rank ---------------------------------------------------------------------------------- */

/* Who this process is in its job, as its launcher told it (muster run, torchrun, srun, mpirun,
 * Kubernetes). The answer has "source" (who told; empty for a process that was started alone),
 * "rank", "world_size", "local_rank", "local_world_size", "local_rank_told", "group_rank",
 * "group_world_size", "role_name", "master_addr", "master_port", "restart_count", "max_restarts",
 * "attempt", "run_id", "device", "plan", "store", "run_dir", "backend", "simulated", "error_file",
 * "host_identity" (equal where memory and devices are shared), "collective_timeout" (seconds, or
 * null) and "batch_shares", one of each rank if the job has a global batch. "meeting" is null, or
 * for ranks that nobody has told where rank 0 listens: "path", a file that all of them see, and
 * "address", at which this process can be reached. */
MUSTER_C_API int muster_rank(char** json);

/* The device that this rank computes on: what its launcher assigned, or the visible GPU of its
 * local rank. `options` is NULL, or an object that may have "local_rank", "local_world_size" (in
 * place of what was told) and "surplus" (as --surplus). The answer has
 *   "ordinal"            of the GPU to make current; null: the rank computes on the CPU
 *   "takes_part"         false for a rank that is left out, by the surplus "drop"
 *   "local_world_size"   if others are left out: how many are not; else null
 *   "assignment"         the rank's entry of a plan
 *   "all_own_gpus"       every rank has a GPU that no other has, as far as this one is told
 *   "visible"            the UUIDs of the GPUs that this process sees, if its launcher assigns
 *                        none. */
MUSTER_C_API int muster_rank_device(const char* options, char** json);

/* ---- What a rank does ------------------------------------------------------------------------ */

/* Opens the rank's activity file, by which `muster top`, `muster report` and --trace see it. All
 * functions of this part do nothing before, and nothing in a process that no `muster run` has
 * started. `path` may be NULL; it gets the file, or an empty text where there is none. */
MUSTER_C_API int muster_activity_open(char** path);

/* The rank leaves its function. */
MUSTER_C_API void muster_activity_close(void);

/* What the rank has come to; samples count beside those before. */
MUSTER_C_API void muster_note_step(int64_t step);
MUSTER_C_API void muster_note_samples(int64_t more);
MUSTER_C_API void muster_note_loss(double loss);

enum {
  MUSTER_OTHER = 0,
  MUSTER_COMPUTE = 1,
  MUSTER_COMMUNICATION = 2,
  MUSTER_DATA = 3,
  MUSTER_CHECKPOINT = 4,
  MUSTER_CATEGORIES = 5,
  MUSTER_INHERITED = -1 /* of the span around it */
};

/* A named piece of work of the calling thread. It ends in the same thread, with those within it. */
typedef struct muster_span {
  const void* thread;
  int64_t begin_ns;
  uint32_t depth;
  uint32_t unused;
} muster_span;
MUSTER_C_API void muster_span_begin(muster_span* span, const char* name, int category);
MUSTER_C_API void muster_span_end(const muster_span* span);

/* What the main thread's time counts as while it is in no span that says it. */
MUSTER_C_API void muster_count_outside_as(int category);

/* The main thread's seconds by category, until now; all 0 where no file is open. */
MUSTER_C_API void muster_seconds(double seconds[MUSTER_CATEGORIES]);

/* A collective, or a message to or from `peer` (-1: none). `size` is sizeof(muster_call). */
typedef struct muster_call {
  uint64_t size;
  const char* group;
  const char* operation;
  int64_t sequence;
  const char* type; /* "f32"; NULL without a tensor */
  const int64_t* sizes;
  uint64_t dimensions;
  int64_t bytes;
  int32_t peer;
  int32_t tag;
} muster_call;
/* The call's number, for its end in any thread; 0: it is not written down. */
MUSTER_C_API uint64_t muster_call_begin(const muster_call* call);
MUSTER_C_API void muster_call_end(uint64_t number, int failed);

/* What runs here: "2.15.0", "nccl", "NVIDIA H100 80GB HBM3". Any may be NULL. */
MUSTER_C_API void muster_software(const char* libtorch,
                                  const char* backend,
                                  const char* device_name);

/* The signal by which another rank asks for this one's stack, and the file that the answer goes to
 * (an empty text: none asks). muster_answers_stacks() says that the program has a handler. */
MUSTER_C_API int muster_stack_signal(void);
MUSTER_C_API int muster_stack_file(char** path);
MUSTER_C_API void muster_answers_stacks(void);

/* ---- Requests to stop ------------------------------------------------------------------------ */

/* From now on SIGTERM, SIGUSR1 and SIGINT are remembered and no longer end the process, except a
 * second SIGINT, and except signals that the program handles or ignores itself. */
MUSTER_C_API void muster_catch_stops(void);

/* The signal that came first since then; 0: none. */
MUSTER_C_API int muster_stop_signal(void);

/* As if the signal had come: for a program that handles it itself. */
MUSTER_C_API void muster_set_stop_signal(int signal);

/* Undoes muster_catch_stops(), and forgets the signal that came. */
MUSTER_C_API void muster_release_stops(void);

#ifdef __cplusplus
}
#endif

#endif
