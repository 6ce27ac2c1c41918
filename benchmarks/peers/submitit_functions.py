import submitit
from task import device_of, evaluate, fit

if __name__ == "__main__":
    executor = submitit.AutoExecutor(folder="logs", cluster="local")
    jobs = [executor.submit(fit, 3.0, device_of(0)), executor.submit(evaluate, 10, device_of(1))]
    print([job.result() for job in jobs])
