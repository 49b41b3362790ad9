//! Tasks for a thread's own state, from other threads. For cold threads: the caller waits.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    time::Duration,
};

/// `None` when the owner has begun it, or the caller has withdrawn it.
type Task<T> = Arc<Mutex<Option<Box<dyn FnOnce(&mut T) + Send>>>>;

/// A queue of tasks for the thread that owns a `T`. That thread runs them between its turns. Clones share the queue.
pub struct TaskQueue<T>(Arc<Mutex<Vec<Task<T>>>>);

/// How long a caller waits. A caller that feeds a service manager's watchdog can afford some such waits.
const TASK_TIME_MAX: Duration = Duration::from_secs(2);

impl<T> TaskQueue<T> {
    /// Runs `task` on the owner's thread and returns its result. `wake` makes the owner look at the queue. `None` if the owner has
    /// not answered within two seconds: it has ended, or it hangs. The task is withdrawn then, unless the owner was at it.
    pub fn run<R: Send + 'static>(
        &self,
        wake: impl FnOnce(),
        task: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> Option<R> {
        let (task, result) = self.send(wake, task);
        result.recv_timeout(TASK_TIME_MAX).ok().or_else(|| {
            drop(lock(&task).take());
            // The owner may have answered at the last moment.
            result.try_recv().ok()
        })
    }

    /// As [`Self::run`], for a task that must run some time: it stays in the queue of an owner that hangs. Returns whether it ran.
    pub fn run_even_late(&self, wake: impl FnOnce(), task: impl FnOnce(&mut T) + Send + 'static) -> bool {
        self.send(wake, task).1.recv_timeout(TASK_TIME_MAX).is_ok()
    }

    fn send<R: Send + 'static>(
        &self,
        wake: impl FnOnce(),
        task: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> (Task<T>, mpsc::Receiver<R>) {
        let (sender, result) = mpsc::sync_channel(1);
        let task: Task<T> = Arc::new(Mutex::new(Some(Box::new(move |owner| {
            // A caller that has given up does not receive.
            let _given_up = sender.send(task(owner));
        }))));
        lock(&self.0).push(Arc::clone(&task));
        wake();
        (task, result)
    }

    /// Called by the owner: runs the tasks in the queue, in their order.
    pub fn run_pending(&self, owner: &mut T) {
        let tasks = std::mem::take(&mut *lock(&self.0));
        for task in tasks {
            let begun = lock(&task).take();
            if let Some(task) = begun {
                task(owner);
            }
        }
    }
}

fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Default for TaskQueue<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for TaskQueue<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for TaskQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskQueue").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn the_owner_runs_each_task_once_in_order_and_an_absent_owner_is_noticed() {
        let queue = TaskQueue::<Vec<u32>>::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (owners, is_stopped) = (queue.clone(), Arc::clone(&stop));
        let owner = std::thread::spawn(move || {
            let mut numbers = Vec::new();
            while !is_stopped.load(Ordering::Acquire) {
                owners.run_pending(&mut numbers);
                std::thread::park();
            }
            numbers
        });
        for number in 0..10 {
            let wake = || owner.thread().unpark();
            let length = queue.run(wake, move |numbers| {
                numbers.push(number);
                numbers.len()
            });
            assert_eq!(length, Some(usize::try_from(number).unwrap() + 1));
        }
        stop.store(true, Ordering::Release);
        owner.thread().unpark();
        assert_eq!(owner.join().unwrap(), (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn a_task_that_no_owner_ran_in_time_is_withdrawn_unless_it_must_run() {
        let queue = TaskQueue::<Vec<u32>>::default();
        let capture = Arc::new(());
        let held = Arc::clone(&capture);
        let withdrawn = queue.run(
            || {},
            move |numbers| {
                let _held = held;
                numbers.push(1);
            },
        );
        assert_eq!(withdrawn, None);
        assert_eq!(Arc::strong_count(&capture), 1, "what it captured is dropped");
        assert!(!queue.run_even_late(|| {}, |numbers| numbers.push(2)));
        let mut numbers = Vec::new();
        queue.run_pending(&mut numbers);
        assert_eq!(numbers, [2]);
    }
}
