/* A clock that is off: shifts the wall clock of every process that loads it, and nothing else. CLOCK_SECONDS is the shift.
 *
 * libfaketime is not used: its time.sleep hangs or fails in Python 3.11, which sleeps until a time of the monotonic clock.
 *
 * CLOCK_SLOT: only in processes of this slot (RANKFALL_SLOT; under plain torchrun there is none, and the ranks of that group are taken).
 * CLOCK_NODE: only in processes on this node (RANKFALL_NODE).
 * CLOCK_SPARES: a module whose own process keeps its clock, so that c10d's rendezvous comes about: it drops nodes whose clocks differ by 15 s.
 * Time stamps of files stay true, as those of a shared file server do.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift;

/* Whether this process was started as "PYTHON -m MODULE …". */
static int runs(const char *module) {
    char text[4096] = {0};
    int file = open("/proc/self/cmdline", O_RDONLY);
    if (file < 0 || read(file, text, sizeof text - 1) < 0) return 0;
    close(file);
    const char *second = text + strlen(text) + 1, *third = second + strlen(second) + 1;
    return !strcmp(second, "-m") && !strcmp(third, module);
}

__attribute__((constructor)) static void read_shift(void) {
    const char *slot = getenv("RANKFALL_SLOT"), *wanted = getenv("CLOCK_SLOT"), *seconds = getenv("CLOCK_SECONDS");
    const char *node = getenv("CLOCK_NODE"), *here = getenv("RANKFALL_NODE");
    if (node && (!here || strcmp(node, here))) return;
    if (!slot) slot = getenv("GROUP_RANK");
    if (!wanted) slot = wanted = "";
    if (getenv("CLOCK_SPARES") && runs(getenv("CLOCK_SPARES"))) return;
    shift = slot && wanted && seconds && !strcmp(slot, wanted) ? atol(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift;
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
