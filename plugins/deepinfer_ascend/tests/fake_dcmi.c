/* DCMI as the probe calls it: one device. A build defines V2 for the newer calls, FAIL to make one call fail. */
#include <string.h>
#ifndef FAIL
#define FAIL ""
#endif
#define ENTER(name) if (strcmp(FAIL, #name) == 0) return -8005
struct chip { char type[32], name[32], version[32]; unsigned cores; };
struct memory { unsigned long long size; unsigned frequency; unsigned long long used; int temperature; unsigned bandwidth; };
struct process { int pid; unsigned long memory; };
static int chip(struct chip *c) { strcpy(c->type, "Ascend"); strcpy(c->name, CHIP); c->cores = 32; return 0; }
static int memory(struct memory *m) { m->size = 131072; m->used = USED; return 0; }
static int processes(struct process *p, int *n) { *n = USED > 1000; p[0].pid = 4242; p[0].memory = USED; return 0; }
#ifdef V2
int dcmiv2_init(void) { ENTER(dcmiv2_init); return 0; }
int dcmiv2_get_device_list(int *list, int *count, int most) { list[0] = 0; *count = most > 0; return 0; }
int dcmiv2_get_device_chip_info(int d, struct chip *c) { (void)d; return chip(c); }
int dcmiv2_get_device_hbm_info(int d, struct memory *m) { (void)d; return memory(m); }
int dcmiv2_get_device_proc_mem_info(int d, struct process *p, int *n) { (void)d; return processes(p, n); }
#else
int dcmi_init(void) { ENTER(dcmi_init); return 0; }
int dcmi_get_card_list(int *count, int *list, int most) { list[0] = 5; *count = most > 0; return 0; }
int dcmi_get_device_id_in_card(int card, int *most, int *mcu, int *cpu)
{ *most = card == 5; *mcu = -1; *cpu = -1; return 0; }
int dcmi_get_device_chip_info(int c, int d, struct chip *out) { ENTER(dcmi_get_device_chip_info); (void)c; (void)d; return chip(out); }
int dcmi_get_device_hbm_info(int c, int d, struct memory *m) { (void)c; (void)d; return memory(m); }
int dcmi_get_device_resource_info(int c, int d, struct process *p, int *n) { (void)c; (void)d; return processes(p, n); }
#endif
