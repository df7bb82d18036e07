/* NVML as the probe calls it: two devices, an H200 and a T4. A build defines FAIL to make one call fail. */
#include <string.h>
#ifndef FAIL
#define FAIL ""
#endif
#define ENTER(name) if (strcmp(FAIL, #name) == 0) return 9
static char handles[2];
int nvmlInit_v2(void) { ENTER(nvmlInit_v2); return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int status) { return status == 9 ? "Driver Not Loaded" : "Unknown Error"; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { ENTER(nvmlSystemGetCudaDriverVersion_v2); *version = 13010; return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { strncpy(text, "580.65.06", n); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { ENTER(nvmlDeviceGetCount_v2); *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = &handles[index]; return 0; }
int nvmlDeviceGetName(void *handle, char *text, unsigned n)
{ strncpy(text, handle == &handles[0] ? "NVIDIA H200" : "Tesla T4", n); return 0; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned n)
{ strncpy(text, handle == &handles[0] ? "GPU-aa11" : "GPU-bb22", n); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{ *major = handle == &handles[0] ? 9 : 7; *minor = handle == &handles[0] ? 0 : 5; return 0; }
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *memory)
{ memory[0] = handle == &handles[0] ? 150754820096ULL : 16106127360ULL; memory[1] = 1; memory[2] = 2; return 0; }
