from joblib import Parallel, delayed
from task import device_of, evaluate, fit

if __name__ == "__main__":
    print(Parallel(n_jobs=2)([delayed(fit)(3.0, device_of(0)), delayed(evaluate)(10, device_of(1))]))
